"""Facts of the gateways in, cells out. Facts may be lost and are counted; nothing waits for them."""
