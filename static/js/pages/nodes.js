// The nodes' page: cordon, drain and return ask first.

import { ask } from "../lib/dialog.js";
import { on } from "../lib/dom.js";

on(document, "click", "[data-node-wish]", (button) => {
  const { node, nodeWish, replicas } = button.dataset;
  ask(`dialog-node-${nodeWish}`, { texts: { node, replicas }, parts: { __node__: node, __wish__: nodeWish } });
});
