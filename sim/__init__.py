"""Runs the gateware without a board: oracle, Verilated libraries, cocotb benches."""
