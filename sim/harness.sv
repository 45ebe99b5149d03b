// The top of every library: the joiner, whose inputs change at the clock's falling edge.
//
// What depends on an input of the top is computed twice per cycle, at both edges; behind these registers
// it is once, and the simulation runs half again as fast. No cycle is added.

module harness #(
    parameter TUPLE = 1,
    parameter RESULT = 1,
    parameter COUNTERS = 1,
    parameter CORES = 1
) (
    input clk,
    input rst,
    input [TUPLE-1:0] tuples_payload,
    input tuples_valid,
    output tuples_ready,
    output [RESULT-1:0] results_payload,
    output results_valid,
    input results_ready,
    output [COUNTERS-1:0] counters,
    output [CORES-1:0] activity
);
    logic rst_now, valid_now, ready_now;
    logic [TUPLE-1:0] payload_now;

    always_ff @(negedge clk) begin
        rst_now <= rst;
        valid_now <= tuples_valid;
        ready_now <= results_ready;
        payload_now <= tuples_payload;
    end

    `JOINER joiner (
        .clk(clk),
        .rst(rst_now),
        .tuples__payload(payload_now),
        .tuples__valid(valid_now),
        .tuples__ready(tuples_ready),
        .results__payload(results_payload),
        .results__valid(results_valid),
        .results__ready(ready_now),
        .counters(counters),
        .activity(activity)
    );
endmodule
