// Reading stored rows back one at a time, for tests and tools; attention reads whole cells.
#include <fmt/format.h>

#include "kv/encode.hpp"
#include "stet/cache.hpp"

namespace stet {
namespace {

// The cell that holds a position of the view. Blocks are for writing too, so reading goes through a pointer that could
// write; nothing below does.
std::byte* cell_of(const View& view, Pos pos) noexcept {
  return const_cast<std::byte*>(view.cell(pos / kCell));
}

Result<void> check(const View& view, int head, Pos pos, std::size_t size, int CellLayout::*dim) {
  if (view.layout == nullptr || !view.has(pos)) {
    return fail(Code::invalid_argument,
                fmt::format("position {} is not among the {} stored from position {}", pos, view.count, view.first));
  }
  if (head < 0 || head >= view.layout->kv_heads) {
    return fail(Code::invalid_argument,
                fmt::format("head {} is not among the {} of the layer", head, view.layout->kv_heads));
  }
  if (size != static_cast<std::size_t>(view.layout->*dim)) {
    return fail(Code::invalid_argument, fmt::format("a row has {} values, not {}", view.layout->*dim, size));
  }
  return {};
}

}  // namespace

Result<void> read_key(const View& view, int head, Pos pos, std::span<double> out) {
  if (auto ok = check(view, head, pos, out.size(), &CellLayout::k_dim); !ok) return ok;
  const kv::Block block = kv::key_block(*view.layout, cell_of(view, pos), head);
  for (int d = 0; d < block.dim; ++d) out[d] = kv::decode_key(block, static_cast<int>(pos % kCell), d);
  return {};
}

Result<void> read_value(const View& view, int head, Pos pos, std::span<double> out) {
  if (auto ok = check(view, head, pos, out.size(), &CellLayout::v_dim); !ok) return ok;
  const kv::Block block = kv::value_block(*view.layout, cell_of(view, pos), head);
  for (int d = 0; d < block.dim; ++d) out[d] = kv::decode_value(block, static_cast<int>(pos % kCell), d);
  return {};
}

}  // namespace stet
