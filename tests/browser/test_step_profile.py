"""The step profile in a browser: a flame graph read by mouse and keyboard, and a wish that tells its consequence."""

from __future__ import annotations

from typing import Any

from django.utils import timezone

from pool.services.audit import Actor
from pool.services.step_profiles import ask_profile, begin_profile, store_profile
from tests.browser.conftest import OpenTab, in_database
from tests.browser.seed_memory import BUSY
from workers.engines.trace import FlameNode, KernelTime, Profile, classify
from workers.engines.trace import StepProfile as SeenStep
from workers.step_profiling import describe_profile

LIVE = '[data-live-state="live"]'
HOSTILE = "<img src=x onerror=alert(1)>"
PARTS = {"attention": 0.0021, "matrix_products": 0.0078, "copies": 0.0006, "other": 0.0009}
TREE: dict[str, Any] = {
    "vllm::unified_attention_with_output": {
        "aten::scaled_dot_product_attention": {
            "aten::_scaled_dot_product_flash_attention": 0.029,
            "aten::view": 0.0004,
        },
        "aten::reshape": 0.004,
        "vllm::reshape_and_cache": 0.008,
    },
    "aten::linear": {
        "aten::addmm": {"mkldnn::gemm": 0.121},
        "aten::t": {"aten::transpose": 0.011},
        "aten::mm": 0.031,
    },
    "aten::copy_": 0.012,
    "aten::silu": 0.013,
    HOSTILE: 0.019,
}


def grow(name: str, inside: Any) -> FlameNode:
    if isinstance(inside, float):
        return FlameNode(name, inside)
    children = {child: grow(child, more) for child, more in inside.items()}
    return FlameNode(name, sum(child.seconds for child in children.values()), children)


def list_tips(node: FlameNode) -> list[FlameNode]:
    return [tip for child in node.children.values() for tip in list_tips(child)] or [node]


def seed_profile() -> int:
    run = ask_profile(BUSY, steps=20, actor=Actor("otto", "page"))
    assert run.intent is not None
    begin_profile(run.intent, now=timezone.now())
    flame = grow("steps", TREE)
    tips = sorted(list_tips(flame), key=lambda tip: -tip.seconds)
    profile = Profile(
        on_device=False,
        steps=tuple(SeenStep(0, 0, 14, 14, 0.0124, PARTS, None, 0) for _ in range(20)),
        kernels=tuple(KernelTime(tip.name, classify(tip.name), tip.seconds, 600) for tip in tips),
        flame=flame,
    )
    figures, tree = describe_profile(profile)
    store_profile(run.pk, figures=figures, flame=tree, now=timezone.now())
    return run.pk


def test_a_flame_graph_is_read_and_zoomed_by_keyboard_and_mouse(open_tab: OpenTab) -> None:
    from playwright.sync_api import expect

    in_database(seed_profile)
    tab = open_tab()
    tab.sign_in("vera")
    tab.open(f"/replicas/{BUSY}/profile/")
    page = tab.page
    reading = page.locator("[data-flame-reading]")
    expect(page.locator(".flame text").first).to_have_text("all steps")
    expect(page.locator("tbody .kernel-name").first).to_have_text("mkldnn::gemm")

    page.focus(".flame")
    page.keyboard.press("ArrowDown")
    expect(reading).to_contain_text("aten::linear · ")
    page.keyboard.press("ArrowDown")
    expect(reading).to_contain_text("aten::linear › aten::addmm")
    page.keyboard.press("ArrowRight")
    expect(reading).to_contain_text("aten::linear › aten::mm")
    page.keyboard.press("Enter")
    expect(page.locator("[data-flame-reset]")).to_be_visible()
    expect(page.locator(".flame g")).to_have_count(3)
    page.keyboard.press("Escape")
    expect(page.locator(".flame g.outer")).to_have_count(1)
    page.locator("[data-flame-reset]").click()

    page.locator(".flame text", has_text="<img").hover(force=True)
    expect(reading).to_contain_text(HOSTILE)
    page.locator(".flame g", has_text="aten::linear").first.click()
    expect(page.locator(".flame g.outer")).to_have_count(1)
    assert tab.overflow_px() <= 0
    assert tab.problems == []


def test_a_profile_is_asked_for_and_its_result_comes_by_itself(open_tab: OpenTab) -> None:
    from playwright.sync_api import expect

    tab = open_tab(width=390, scheme="dark")
    tab.sign_in("otto")
    tab.open(f"/replicas/{BUSY}/")
    page = tab.page
    page.get_by_role("link", name="Step profile").click()
    expect(page.locator(LIVE)).to_be_visible()
    expect(page.get_by_text("This replica has never been profiled")).to_be_visible()
    page.get_by_role("button", name="Take a profile").click()
    expect(page.locator("#dialog-profile")).to_contain_text("stands still for about a second")
    page.keyboard.press("Escape")

    in_database(seed_profile)

    expect(page.locator(".flame text").first).to_have_text("all steps")
    expect(page.locator("table.parts tr", has_text="matrix products")).to_contain_text("63 %")
    expect(page.locator("tbody .kernel-name").first).to_have_text("mkldnn::gemm")
    assert tab.overflow_px() <= 0
    page.get_by_role("button", name="Take a profile").click()
    page.get_by_role("button", name="Take it").click()
    expect(page.get_by_text("takes one profile at a time")).to_be_visible()
    expect(page.get_by_role("button", name="Take a profile")).to_be_hidden()
    expect(page.locator(".flame text").first).to_have_text("all steps")
    assert tab.problems == []
