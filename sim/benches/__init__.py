"""Benches that run inside the simulator, under cocotb. `sim.regression` builds and starts them."""
