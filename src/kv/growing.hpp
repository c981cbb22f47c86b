// Growing storage, the honest bad example: each step copies all that its sequences hold, as concatenating tensors does.
// A sequence has two places of max_len tokens and moves to the other one.
#pragma once

#include "kv/store.hpp"

namespace stet::kv {

class Growing final : public Store {
 public:
  using Store::Store;

 private:
  std::uint32_t place(std::uint32_t index, std::size_t g, Pos cell) noexcept override;
  void prepare(const Slice& slice) noexcept override;
  void undo(const Slice& slice) noexcept override;
  void settle(const Slice& slice) noexcept override;

  void move(std::uint32_t index) noexcept;
  std::uint32_t other(std::uint32_t index, std::size_t g, std::uint32_t number) const noexcept;
};

}  // namespace stet::kv
