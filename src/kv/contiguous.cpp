#include "kv/contiguous.hpp"

#include <algorithm>

namespace stet::kv {

// The cells after the sinks are a ring: as long as a sequence keeps no more of them than it has, none meets another.
std::uint32_t Contiguous::place(std::uint32_t index, std::size_t g, Pos cell) noexcept {
  const Group& alike = group(g);
  const auto all = static_cast<Pos>(alike.cells), sinks = std::min(alike.sink_cells, all);
  const Pos own = cell < sinks ? cell : sinks + (cell - sinks) % std::max<Pos>(all - sinks, 1);
  return static_cast<std::uint32_t>(index * alike.cells + static_cast<std::size_t>(own));
}

}  // namespace stet::kv
