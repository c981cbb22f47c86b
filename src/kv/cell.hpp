// How many bytes rows and cells take, codec by codec.
#pragma once

#include <cstddef>

#include "stet/cache.hpp"

namespace stet::kv {

/// One of the enumerators, and not a number that was cast to it.
bool is_known(Codec codec) noexcept;

/// Stored bytes of one token of a layer, all heads, K and V, scales included. Saturates (sizes.hpp).
std::size_t row_bytes(const LayerSpec& layer) noexcept;

/// Where rows lie in a cell; K, V and scales of each head start on cache lines, so threads that write different heads
/// share none. Saturates.
CellLayout cell_layout(const LayerSpec& layer) noexcept;

}  // namespace stet::kv
