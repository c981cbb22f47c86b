// Contiguous storage: each sequence has its own cells in each group, for max_len tokens, or for what a window keeps.
#pragma once

#include "kv/store.hpp"

namespace stet::kv {

class Contiguous final : public Store {
 public:
  using Store::Store;

 private:
  std::uint32_t place(std::uint32_t index, std::size_t g, Pos cell) noexcept override;
};

}  // namespace stet::kv
