// Drives one Verilated joiner: words in, results out, in batches that the caller sizes.
//
//             +---------+
//   words --->|  model  |---> results
//             +---------+---> counters, activity
//
// A joiner with a memory port, which MEMORY_WORDS and ADDRESS_WIDTH tell, has a model of memory behind it.
// Generic over the ports' widths, so every configuration is built with this same file. Each
// cycle lowers the clock with new inputs, looks at the handshakes, and then raises the clock.

#include "dram.h"

namespace {

using Tuples = Port<Bare<decltype(Vtop::tuples_payload)>>;
using Results = Port<Bare<decltype(Vtop::results_payload)>>;
using Counters = Port<Bare<decltype(Vtop::counters)>>;
using Activity = Port<Bare<decltype(Vtop::activity)>>;

enum Status : int32_t { DONE = 0, PAUSED = 1, HUNG = 2 };

struct Model : Clocked {
    bool offering = false;  // valid is high: it stays, with its payload, until ready
    uint64_t idle = 0;      // cycles since the last transfer on either stream or of memory
    Random random;
#ifdef MEMORY_WORDS
    Contents contents{MEMORY_WORDS, Port<Bare<decltype(Vtop::memory_data_payload)>>::words};
    Dram dram;
#endif

    explicit Model(const Timing& timing)
#ifdef MEMORY_WORDS
        : dram(contents, timing, ADDRESS_WIDTH)
#endif
    {
        top->tuples_valid = 0;
        top->results_ready = 0;
#ifdef MEMORY_WORDS
        DRIVE(dram, *top, memory, 0, 256, 256);
#endif
        hold_reset();
    }
};

}  // namespace

// What the caller asks for, and how far the model came. `sim/library.py` has the same fields.
struct Job {
    const uint32_t* words;      // [word_count][tuple words]
    uint64_t word_count;
    uint64_t word_next;         // how many words were taken
    uint32_t* results;          // [result_room][result words]
    uint64_t result_room;
    uint64_t result_count;      // how many results this call put there
    uint64_t marks;             // how many marks are still to come
    const uint32_t* mark_mask;  // a result is a mark if (result & mark_mask) == mark_value
    const uint32_t* mark_value;
    uint64_t cycle;             // cycles since the run began
    uint64_t cycle_limit;       // pause there
    uint64_t patience;          // cycles without a transfer that count as a hang
    uint64_t* taken;            // [word_count] cycle of each transfer, or null
    uint64_t* given;            // [result_room] cycle of each transfer, or null
    uint32_t* activity;         // [cores] cycles in which each core was active, or null
    uint32_t cores;
    uint32_t stall_in;          // chance in 256 that a new word waits for a cycle
    uint32_t stall_out;         // chance in 256 that results are not taken in a cycle
    uint32_t valid, ready;      // handshake of `tuples` in the last cycle
};

EXPORT void touchline_shape(uint32_t shape[3]) {
    shape[0] = Tuples::words;
    shape[1] = Results::words;
    shape[2] = Counters::words;
}

EXPORT Model* touchline_open(const Timing* timing) { return new Model(*timing); }

EXPORT void touchline_close(Model* model) { delete model; }

EXPORT void touchline_seed(Model* model, uint64_t seed) { model->random.state = seed; }

EXPORT void touchline_counters(Model* model, uint32_t* words) { Counters::get(model->top->counters, words); }

// Runs until all words are taken and all marks are seen (DONE), until the results' room is full or the
// cycle limit is reached (PAUSED: call again), or until the watchdog bites (HUNG).
EXPORT int32_t touchline_run(Model* model, Job* job) {
    Vtop& top = *model->top;
    const bool stalls = job->stall_in || job->stall_out;
    uint32_t active[Activity::words];
    job->result_count = 0;
    if (!job->cycle) model->idle = 0;
    for (;;) {
        if (job->word_next == job->word_count && !job->marks) return DONE;
        if (job->result_count == job->result_room || job->cycle == job->cycle_limit) return PAUSED;
        if (model->idle >= job->patience) return HUNG;

        const uint64_t dice = stalls ? model->random.draw() : ~uint64_t{0};
        if (!model->offering && job->word_next < job->word_count && (dice & 255) >= job->stall_in) {
            model->offering = true;
            Tuples::put(top.tuples_payload, job->words + job->word_next * Tuples::words);
        }
        top.tuples_valid = model->offering;
        top.results_ready = (dice >> 8 & 255) >= job->stall_out;
#ifdef MEMORY_WORDS
        DRIVE(model->dram, top, memory, stalls ? model->random.draw() : dice, job->stall_in, job->stall_out);
#endif
        model->low();

        ++model->idle;
#ifdef MEMORY_WORDS
        OBSERVE(model->dram, top, memory, model->idle);
#endif
        if (top.tuples_valid && top.tuples_ready) {
            if (job->taken) job->taken[job->word_next] = job->cycle;
            ++job->word_next;
            model->offering = false;
            model->idle = 0;
        }
        if (top.results_valid && top.results_ready) {
            uint32_t* result = job->results + job->result_count * Results::words;
            Results::get(top.results_payload, result);
            bool mark = job->marks > 0;
            for (size_t word = 0; word < Results::words && mark; ++word)
                mark = (result[word] & job->mark_mask[word]) == job->mark_value[word];
            if (mark) --job->marks;
            if (job->given) job->given[job->result_count] = job->cycle;
            ++job->result_count;
            model->idle = 0;
        }
        if (job->activity) {
            Activity::get(top.activity, active);
            for (uint32_t core = 0; core < job->cores; ++core)
                job->activity[core] += active[core / 32] >> (core % 32) & 1;
        }
        job->valid = top.tuples_valid;
        job->ready = top.tuples_ready;
        model->high();
        ++job->cycle;
    }
}
