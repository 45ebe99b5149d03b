// A model of external memory behind a memory port (hw/memory_port.py), clocked with a Verilated component.
//
//                 +--------------------------------+
//   read -------->| bursts -> channel -> in flight |---> data
//                 |              |                 |
//                 |           contents             |
//                 |              |                 |
//   write ------->| bursts -> channel -> in flight |---> done
//   written ----->|                                |
//                 +--------------------------------+
//
// Each channel moves a word per cycle, but pauses to open a row that its bank does not have open, and for
// refreshes, which close all rows. Words arrive and writes are done a latency later. Nothing that is written
// can be read before its `done`: who reads too early sees what was there before.

#pragma once

#include <cstdlib>
#include <deque>
#include <vector>

#include "port.h"

// What memory costs, in cycles and words of the port. `sim/dram.py` has the same fields.
struct Timing {
    uint32_t latency;        // from a word's turn on its channel until it is there
    uint32_t row;            // words of a row
    uint32_t banks;
    uint32_t row_miss;       // to open a row
    uint32_t refresh_every;  // 0: never
    uint32_t refresh;        // how long one takes
    uint32_t outstanding;    // bursts that a channel takes ahead
};

// Since the memory was opened. `sim/dram.py` has the same fields.
struct Traffic {
    uint64_t read, written;  // words
    uint64_t row_misses, refreshes;
};

struct Contents {
    const uint64_t count;  // words of the port
    const size_t width;    // of one of them, in units of 32 bits
    uint32_t* const words;

    // Pages that are never touched take no room.
    Contents(uint64_t count, size_t width)
        : count(count), width(width), words(static_cast<uint32_t*>(std::calloc(count * width, 4))) {
        if (!words) std::abort();
    }
    ~Contents() { std::free(words); }
    Contents(const Contents&) = delete;
    uint32_t* at(uint64_t address) { return words + address % count * width; }
};

// When a channel may move its next word.
struct Channel {
    const Timing timing;
    Traffic& traffic;
    std::vector<uint64_t> open;  // row of each bank
    uint64_t free = 0;
    uint64_t next_refresh;

    Channel(const Timing& timing, Traffic& traffic)
        : timing(timing), traffic(traffic), open(timing.banks, ~uint64_t{0}), next_refresh(timing.refresh_every) {}

    bool may_move(uint64_t cycle, uint64_t address) {
        if (timing.refresh_every && cycle >= next_refresh) {
            next_refresh += timing.refresh_every;
            free = cycle + timing.refresh;
            open.assign(timing.banks, ~uint64_t{0});
            ++traffic.refreshes;
        }
        if (cycle < free) return false;
        const uint64_t row = address / timing.row;
        uint64_t& bank = open[row % timing.banks];
        if (bank == row) return true;
        bank = row;
        free = cycle + timing.row_miss;
        ++traffic.row_misses;
        return !timing.row_miss;
    }
};

// The memory's signals in one cycle.
struct Levels {
    bool read_ready, data_valid, write_ready, written_ready, done;
    const uint32_t* data;  // set when a word begins to be offered
};

// One memory port. `drive` gives the memory's signals for a cycle, then `observe` is told the user's.
// `dice` are random bits, `in` and `out` chances in 256 that a transfer to or from the user waits.
class Dram {
    struct Burst {
        uint64_t address, length, due;
    };

    Contents& contents;
    const Timing timing;
    const unsigned address_width;
    Channel reading, writing;
    std::deque<Burst> reads, writes, pending;  // `pending`: all words are there, `done` is not
    std::deque<uint64_t> due;                  // of the words in flight to the user
    std::vector<uint32_t> flight;              // the words, a ring of `places`
    const size_t places;
    size_t first = 0;
    std::deque<uint32_t> staged;  // words that become contents with their `done`
    uint64_t taken = 0;           // words of the first of `writes`
    uint64_t cycle = 0;
    Levels levels{};

    Burst burst(uint64_t request) const {
        return {request & ((uint64_t{1} << address_width) - 1), request >> address_width, 0};
    }

public:
    Traffic traffic{};

    Dram(Contents& contents, const Timing& timing, unsigned address_width)
        : contents(contents), timing(timing), address_width(address_width), reading(timing, traffic),
          writing(timing, traffic), flight((timing.latency + 64) * contents.width), places(timing.latency + 64) {}

    const Levels& drive(uint64_t dice, uint32_t in, uint32_t out) {
        const auto waits = [&dice](uint32_t chance) {
            const bool waits = (dice & 255) < chance;
            dice >>= 8;
            return waits;
        };
        ++cycle;
        if (!reads.empty() && due.size() < places && reading.may_move(cycle, reads.front().address)) {
            Burst& burst = reads.front();
            uint32_t* place = &flight[(first + due.size()) % places * contents.width];
            std::memcpy(place, contents.at(burst.address), contents.width * 4);
            due.push_back(cycle + timing.latency);
            ++burst.address;
            ++traffic.read;
            if (!--burst.length) reads.pop_front();
        }
        levels.data = nullptr;
        if (!levels.data_valid && !due.empty() && due.front() <= cycle && !waits(in)) {
            levels.data_valid = true;
            levels.data = &flight[first * contents.width];
        }
        levels.read_ready = reads.size() < timing.outstanding && !waits(out);
        levels.write_ready = writes.size() < timing.outstanding && !waits(out);
        levels.written_ready =
            !writes.empty() && !waits(out) && writing.may_move(cycle, writes.front().address + taken);
        levels.done = !pending.empty() && pending.front().due <= cycle && !waits(in);
        return levels;
    }

    // Tells whether anything was transferred.
    bool observe(bool read, uint64_t read_request, bool data, bool write, uint64_t write_request, bool written,
                 const uint32_t* word) {
        const bool moves = (read && levels.read_ready) || (data && levels.data_valid) || levels.done ||
                           (write && levels.write_ready) || (written && levels.written_ready);
        if (read && levels.read_ready) reads.push_back(burst(read_request));
        if (data && levels.data_valid) {
            due.pop_front();
            first = (first + 1) % places;
            levels.data_valid = false;
        }
        if (levels.done) {
            const Burst& burst = pending.front();
            const auto end = staged.begin() + burst.length * contents.width;
            for (uint64_t word = 0; word < burst.length; ++word)
                std::copy_n(staged.begin() + word * contents.width, contents.width,
                            contents.at(burst.address + word));
            staged.erase(staged.begin(), end);
            pending.pop_front();
        }
        if (written && levels.written_ready) {
            staged.insert(staged.end(), word, word + contents.width);
            ++traffic.written;
            if (++taken == writes.front().length) {
                pending.push_back({writes.front().address, taken, cycle + timing.latency});
                writes.pop_front();
                taken = 0;
            }
        }
        if (write && levels.write_ready) writes.push_back(burst(write_request));
        return moves;
    }
};

// The signals of the memory port `name` of `top` before a cycle, and after its lower edge.
#define DRIVE(dram, top, name, dice, in, out)                                                  \
    do {                                                                                       \
        using Word = Port<Bare<decltype(Vtop::name##_data_payload)>>;                          \
        const Levels& levels = (dram).drive(dice, in, out);                                    \
        if (levels.data) Word::put((top).name##_data_payload, levels.data);                    \
        (top).name##_data_valid = levels.data_valid;                                           \
        (top).name##_read_ready = levels.read_ready;                                           \
        (top).name##_write_ready = levels.write_ready;                                         \
        (top).name##_written_ready = levels.written_ready;                                     \
        (top).name##_done = levels.done;                                                       \
    } while (0)
#define OBSERVE(dram, top, name, idle)                                                         \
    do {                                                                                       \
        using Word = Port<Bare<decltype(Vtop::name##_written_payload)>>;                       \
        uint32_t word[Word::words];                                                            \
        if ((top).name##_written_valid) Word::get((top).name##_written_payload, word);         \
        if ((dram).observe((top).name##_read_valid, (top).name##_read_payload,                 \
                           (top).name##_data_ready, (top).name##_write_valid,                  \
                           (top).name##_write_payload, (top).name##_written_valid, word))      \
            (idle) = 0;                                                                        \
    } while (0)
