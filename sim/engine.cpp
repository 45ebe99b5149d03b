// Drives one Verilated component with any streams and memory ports: rows in, rows out, and memory behind it.
//
//   inputs --->[ component ]---> outputs
//                 |    ^
//               [ memory ]        one array behind all ports, each with channels of its own
//
// `ports.h`, written for each component, lists its ports: INPUTS, OUTPUTS and MEMORIES apply a macro to each
// name, with a number from 0. MEMORY_WORDS and ADDRESS_WIDTH size the memory.

#include "dram.h"
#include "ports.h"

namespace {

#define COUNT(number, name) +1
constexpr size_t inputs = 0 INPUTS(COUNT), outputs = 0 OUTPUTS(COUNT), memories = 0 MEMORIES(COUNT);

#define SHAPE(number, name) Port<Bare<decltype(Vtop::name##_payload)>>::words,
constexpr uint32_t shapes[] = {INPUTS(SHAPE) OUTPUTS(SHAPE) 0};

enum Status : int32_t { DONE = 0, PAUSED = 1, HUNG = 2 };

struct Model : Clocked {
    Contents contents{MEMORY_WORDS, MEMORY_WIDTH};
    std::vector<Dram> drams;
    bool offering[inputs + 1] = {};  // valid is high: it stays, with its payload, until ready
    uint64_t idle = 0;               // cycles since the last transfer on any stream
    Random random;

    explicit Model(const Timing& timing) {
        drams.reserve(memories);
        for (size_t k = 0; k < memories; ++k) drams.emplace_back(contents, timing, ADDRESS_WIDTH);
#define REST_INPUT(number, name) top->name##_valid = 0;
#define REST_OUTPUT(number, name) top->name##_ready = 0;
#define REST_MEMORY(number, name) DRIVE(drams[number], *top, name, 0, 256, 256);
        INPUTS(REST_INPUT)
        OUTPUTS(REST_OUTPUT)
        MEMORIES(REST_MEMORY)
        hold_reset();
    }
};

}  // namespace

// One stream's rows. `sim/engine.py` has the same fields.
struct Stream {
    uint32_t* rows;    // to be sent, or room for what comes
    uint64_t count;    // how many there are, or have room
    uint64_t next;     // how many were transferred
    uint64_t wanted;   // of an output: how many must come
    uint64_t* cycles;  // [count] when each was transferred
};

// What the caller asks for, and how far the model came. `sim/engine.py` has the same fields.
struct Job {
    Stream* inputs;
    Stream* outputs;
    uint64_t cycle;
    uint64_t cycle_limit;  // pause there
    uint64_t patience;     // cycles without a transfer that count as a hang
    uint32_t stall_in;     // chances in 256 that a row or word to the component, or from it, waits for a cycle
    uint32_t stall_out;
};

EXPORT const uint32_t* engine_shapes() { return shapes; }

EXPORT Model* engine_open(const Timing* timing) { return new Model(*timing); }

EXPORT void engine_close(Model* model) { delete model; }

EXPORT uint32_t* engine_memory(Model* model) { return model->contents.words; }

EXPORT void engine_traffic(Model* model, uint32_t port, Traffic* traffic) { *traffic = model->drams[port].traffic; }

EXPORT void engine_seed(Model* model, uint64_t seed) { model->random.state = seed; }

// Runs until all inputs are taken and all wanted outputs are there (DONE), until the room of an output is
// full or the cycle limit is reached (PAUSED: call again), or until the watchdog bites (HUNG).
EXPORT int32_t engine_run(Model* model, Job* job) {
    Vtop& top = *model->top;
    const bool stalls = job->stall_in || job->stall_out;
    if (!job->cycle) model->idle = 0;
    for (;;) {
        bool done = true, full = false;
        for (size_t k = 0; k < inputs; ++k) done &= job->inputs[k].next == job->inputs[k].count;
        for (size_t k = 0; k < outputs; ++k) {
            done &= job->outputs[k].next >= job->outputs[k].wanted;
            full |= job->outputs[k].next == job->outputs[k].count;
        }
        if (done) return DONE;
        if (full || job->cycle == job->cycle_limit) return PAUSED;
        if (model->idle >= job->patience) return HUNG;

        const auto draw = [&] { return stalls ? model->random.draw() : ~uint64_t{0}; };
        uint64_t dice = draw();
#define DRIVE_INPUT(number, name)                                                                      \
    {                                                                                                  \
        Stream& stream = job->inputs[number];                                                          \
        if (!model->offering[number] && stream.next < stream.count && (dice & 255) >= job->stall_in) { \
            model->offering[number] = true;                                                            \
            using Row = Port<Bare<decltype(Vtop::name##_payload)>>;                                    \
            Row::put(top.name##_payload, stream.rows + stream.next * Row::words);                      \
        }                                                                                              \
        top.name##_valid = model->offering[number];                                                    \
        dice = dice >> 8 | dice << 56;                                                                 \
    }
#define DRIVE_OUTPUT(number, name)                        \
    top.name##_ready = (dice & 255) >= job->stall_out;    \
    dice = dice >> 8 | dice << 56;
#define DRIVE_MEMORY(number, name) DRIVE(model->drams[number], top, name, draw(), job->stall_in, job->stall_out);
        INPUTS(DRIVE_INPUT)
        OUTPUTS(DRIVE_OUTPUT)
        MEMORIES(DRIVE_MEMORY)
        model->low();

        ++model->idle;
#define TAKE_INPUT(number, name)                         \
    if (top.name##_valid && top.name##_ready) {          \
        Stream& stream = job->inputs[number];            \
        stream.cycles[stream.next++] = job->cycle;       \
        model->offering[number] = false;                 \
        model->idle = 0;                                 \
    }
#define TAKE_OUTPUT(number, name)                                                      \
    if (top.name##_valid && top.name##_ready) {                                        \
        Stream& stream = job->outputs[number];                                         \
        using Row = Port<Bare<decltype(Vtop::name##_payload)>>;                        \
        Row::get(top.name##_payload, stream.rows + stream.next * Row::words);          \
        stream.cycles[stream.next++] = job->cycle;                                     \
        model->idle = 0;                                                               \
    }
#define TAKE_MEMORY(number, name) OBSERVE(model->drams[number], top, name, model->idle);
        INPUTS(TAKE_INPUT)
        OUTPUTS(TAKE_OUTPUT)
        MEMORIES(TAKE_MEMORY)
        model->high();
        ++job->cycle;
    }
}
