// What the harnesses of joiners and boards share: ports of any width, the clock, the reset.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>

#include "Vtop.h"
#include "verilated.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

// A port as 32-bit words, least significant first: Verilator's type depends on the port's width.
template <typename T>
struct Port {
    static constexpr size_t words = sizeof(T) > 4 ? sizeof(T) / 4 : 1;
    static void put(T& port, const uint32_t* from) {
        if constexpr (std::is_integral_v<T>) {
            uint64_t value = from[0];
            if constexpr (words == 2) value |= uint64_t{from[1]} << 32;
            port = static_cast<T>(value);
        } else {
            std::memcpy(port.data(), from, sizeof(T));
        }
    }
    static void get(const T& port, uint32_t* to) {
        if constexpr (std::is_integral_v<T>) {
            const uint64_t value = port;
            to[0] = static_cast<uint32_t>(value);
            if constexpr (words == 2) to[1] = static_cast<uint32_t>(value >> 32);
        } else {
            std::memcpy(to, port.data(), sizeof(T));
        }
    }
};

template <typename T>
using Bare = std::remove_cv_t<std::remove_reference_t<T>>;

// splitmix64
struct Random {
    uint64_t state = 0;

    uint64_t draw() {
        uint64_t z = state += 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
};

// A Verilated top with a clock: inputs are set before `low`, outputs are looked at between `low` and `high`.
struct Clocked {
    std::unique_ptr<VerilatedContext> context = std::make_unique<VerilatedContext>();
    std::unique_ptr<Vtop> top = std::make_unique<Vtop>(context.get());

    ~Clocked() { top->final(); }

    void low() {
        top->clk = 0;
        top->eval();
    }
    void high() {
        top->clk = 1;
        top->eval();
    }
    void hold_reset() {
        top->rst = 1;
        for (int cycle = 0; cycle < 4; ++cycle) {
            low();
            high();
        }
        top->rst = 0;
    }
};
