#include "kv/growing.hpp"

namespace stet::kv {

std::uint32_t Growing::place(std::uint32_t index, std::size_t g, Pos cell) noexcept {
  const std::size_t place = 2 * std::size_t{index} + (record(index).second ? 1 : 0);
  return static_cast<std::uint32_t>(place * group(g).cells + static_cast<std::size_t>(cell));
}

// The number of the same cell in the place where the sequence is not.
std::uint32_t Growing::other(std::uint32_t index, std::size_t g, std::uint32_t number) const noexcept {
  const auto cells = static_cast<std::uint32_t>(group(g).cells);
  return record(index).second ? number - cells : number + cells;
}

// Names the cells of the other place. Moves no row.
void Growing::move(std::uint32_t index) noexcept {
  for (std::size_t g = 0; g < groups(); ++g) {
    std::uint32_t* numbers = cells(index, g);
    for (std::size_t i = 0; i < held(index, g).cells; ++i) numbers[i] = other(index, g, numbers[i]);
  }
  record(index).second = !record(index).second;
}

// What is copied is whole cells, which is the rounding of usage().copied.
void Growing::prepare(const Slice& slice) noexcept {
  const std::uint32_t index = slice.seq.index;
  for (std::size_t g = 0; g < groups(); ++g) {
    const std::uint32_t* numbers = cells(index, g);
    for (std::size_t i = 0; i < held(index, g).cells; ++i) {
      copy_rows(g, numbers[i], other(index, g, numbers[i]), {0, static_cast<int>(kCell)});
    }
  }
  move(index);
}

void Growing::undo(const Slice& slice) noexcept {
  move(slice.seq.index);
  settle(slice);
}

// The place that the sequence left.
void Growing::settle(const Slice& slice) noexcept {
  const std::uint32_t index = slice.seq.index;
  for (std::size_t g = 0; g < groups(); ++g) {
    const Held& has = held(index, g);
    for (std::size_t i = 0; i < has.cells; ++i) clear(g, cell_at(has, i), other(index, g, cells(index, g)[i]));
  }
}

}  // namespace stet::kv
