// Drives one Verilated board: bytes in, bytes out, through its stream or its UART pins.
//
//   bytes --> words, or start bit, 8 bits, stop bit --> +-------+
//                                                       | board |
//   bytes <-- words, or the same ---------------------- +-------+

#include "port.h"

namespace {

using Word = Port<Bare<decltype(Vtop::incoming_payload)>>;
constexpr size_t BYTES = sizeof(Vtop::incoming_payload);  // of a word: widths are powers of two, 8 to 512

// The host's end of the line: `rx` is what it sends, `tx` what it hears.
struct Uart {
    uint32_t sending = 1;   // bits still to send, the present one lowest; ends with the stop bit
    int bits = 0;           // how many
    double sent_for = 0;    // cycles of the present bit that are over
    int awaited = 0;        // samples still to take: start bit, 8 bits, stop bit
    double sample_in = 0;   // cycles until the next one
    uint32_t heard = 0;
};

struct Model : Clocked {
    Uart uart;
    bool offering = false;

    Model() { reset(); }

    void reset() {
        uart = Uart();
        offering = false;
        top->rx = 1;
        top->incoming_valid = 0;
        top->outgoing_ready = 0;
        hold_reset();
    }
};

}  // namespace

// What the caller asks for, and how far the model came. `sim/board.py` has the same fields.
struct Job {
    const uint8_t* in;
    uint64_t in_count;
    uint64_t in_next;    // bytes taken
    uint8_t* out;        // has room for a word per cycle
    uint64_t out_count;
    uint64_t cycles;     // how long to run
    double divisor;      // cycles per bit, or 0 for streams
};

static void step_stream(Model& model, Job& job) {
    Vtop& top = *model.top;
    uint32_t word[Word::words] = {};
    for (uint64_t cycle = 0; cycle < job.cycles; ++cycle) {
        const bool more = job.in_count - job.in_next >= BYTES;
        if (!model.offering && more) {
            std::memcpy(word, job.in + job.in_next, BYTES);
            Word::put(top.incoming_payload, word);
            job.in_next += BYTES;
            model.offering = true;
        }
        top.incoming_valid = model.offering;
        top.outgoing_ready = 1;
        model.low();
        if (top.incoming_valid && top.incoming_ready) model.offering = false;
        if (top.outgoing_valid) {
            Word::get(top.outgoing_payload, word);
            std::memcpy(job.out + job.out_count, word, BYTES);
            job.out_count += BYTES;
        }
        model.high();
    }
}

static void step_uart(Model& model, Job& job) {
    Vtop& top = *model.top;
    Uart& line = model.uart;
    for (uint64_t cycle = 0; cycle < job.cycles; ++cycle) {
        if (!line.bits && job.in_next < job.in_count) {
            line.sending = 0x200u | uint32_t{job.in[job.in_next++]} << 1;
            line.bits = 10;
        }
        top.rx = line.sending & 1;
        if (line.bits && ++line.sent_for >= job.divisor) {
            line.sent_for -= job.divisor;
            line.sending = line.sending >> 1 | 0x200u;
            if (!--line.bits) line.sending = 1;
        }
        if (!line.bits && job.in_next == job.in_count) line.sent_for = 0;
        model.low();
        if (!line.awaited && !top.tx) {
            line.awaited = 10;
            line.sample_in = job.divisor / 2;
        }
        if (line.awaited && --line.sample_in < 0) {
            line.sample_in += job.divisor;
            line.heard = line.heard >> 1 | (top.tx ? 0x200u : 0);
            // A byte without a stop bit is none.
            if (!--line.awaited && line.heard & 0x200) job.out[job.out_count++] = line.heard >> 1 & 0xff;
        }
        model.high();
    }
}

EXPORT Model* touchline_open() { return new Model; }

EXPORT void touchline_close(Model* model) { delete model; }

EXPORT void touchline_reset(Model* model) { model->reset(); }

EXPORT void touchline_step(Model* model, Job* job) {
    job->divisor > 0 ? step_uart(*model, *job) : step_stream(*model, *job);
}
