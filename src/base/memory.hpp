// How much memory this process has taken and may still take.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace stet::base {

/// The least of what the machine has to spare, what the control groups of this process leave (v2 and v1, with what they
/// could reclaim from file caches), and its limit on address space. Nothing when the system tells none of them. `root`
/// stands for / in tests.
std::optional<std::uint64_t> available_memory(const std::filesystem::path& root = "/");

/// The most memory that this process had in use (VmHWM) since it began or since the last reset; nothing where the
/// system does not tell, or does not forget.
std::optional<std::uint64_t> peak_memory();
bool reset_peak_memory();

}  // namespace stet::base
