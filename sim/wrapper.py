"""The Verilog around a component in a library: its ports under names for C++, inputs at the falling edge.

What depends on an input of the top is computed twice per cycle, at both edges; behind registers of the
falling edge it is once, and the simulation runs half again as fast. No cycle is added.
"""

from amaranth.hdl import Shape
from amaranth.lib import wiring


def wrapper(signature: wiring.Signature, name: str) -> str:
    """The module `harness` around the component `name`: port `a__b__c` of it is `a_b_c` here."""
    ports, registers, moves, connections = [], ["logic rst_now;"], ["rst_now <= rst;"], []
    for path, member, _ in signature.flatten(signature.create()):
        width = Shape.cast(member.shape).width
        inside, outside = "__".join(map(str, path)), "_".join(map(str, path))
        if member.flow is wiring.In:
            ports.append(f"input [{width - 1}:0] {outside}")
            registers.append(f"logic [{width - 1}:0] {outside}_now;")
            moves.append(f"{outside}_now <= {outside};")
            connections.append(f".{inside}({outside}_now)")
        else:
            ports.append(f"output [{width - 1}:0] {outside}")
            connections.append(f".{inside}({outside})")
    return "\n".join(
        [
            f"\nmodule harness (input clk, input rst, {', '.join(ports)});",
            *registers,
            "always_ff @(negedge clk) begin",
            *moves,
            "end",
            f"{name} component (.clk(clk), .rst(rst_now), {', '.join(connections)});",
            "endmodule\n",
        ]
    )
