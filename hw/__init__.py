"""Amaranth gateware: the socket every joiner has, the joiners, and the pieces they share."""
