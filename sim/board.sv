// The top of every simulated board, whose inputs change at the clock's falling edge, as in wrapper.py.
//
// With UART defined the board has the pins `rx` and `tx`, else a stream of words each way.

module harness #(
    parameter WIDTH = 8
) (
    input clk,
    input rst,
    input [WIDTH-1:0] incoming_payload,
    input incoming_valid,
    output incoming_ready,
    output [WIDTH-1:0] outgoing_payload,
    output outgoing_valid,
    input outgoing_ready,
    input rx,
    output tx
);
    logic rst_now, valid_now, ready_now, rx_now;
    logic [WIDTH-1:0] payload_now;

    always_ff @(negedge clk) begin
        rst_now <= rst;
        valid_now <= incoming_valid;
        ready_now <= outgoing_ready;
        payload_now <= incoming_payload;
        rx_now <= rx;
    end

`ifdef UART
    assign incoming_ready = 1'b0;
    assign outgoing_valid = 1'b0;
    assign outgoing_payload = '0;
    board board (
        .clk(clk),
        .rst(rst_now),
        .rx(rx_now),
        .tx(tx)
    );
`else
    assign tx = 1'b1;
    board board (
        .clk(clk),
        .rst(rst_now),
        .incoming__payload(payload_now),
        .incoming__valid(valid_now),
        .incoming__ready(incoming_ready),
        .outgoing__payload(outgoing_payload),
        .outgoing__valid(outgoing_valid),
        .outgoing__ready(ready_now)
    );
`endif
endmodule
