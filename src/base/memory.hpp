// How much memory this process may still take.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace stet::base {

/// The least of what the machine has to spare, what the control groups of this process leave (v2 and v1, with what they
/// could reclaim from file caches), and its limit on address space. Nothing when the system tells none of them. `root`
/// stands for / in tests.
std::optional<std::uint64_t> available_memory(const std::filesystem::path& root = "/");

}  // namespace stet::base
