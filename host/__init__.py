"""The driver: join specs, encodings, devices, tiling, command line."""
