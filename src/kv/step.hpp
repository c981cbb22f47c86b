// The handle of a step of a Store.
#pragma once

#include <cstdint>

#include "kv/store.hpp"

namespace stet::kv {

/// It says which step it is, so that one kept after its commit reads nothing of the next.
class Store::Pending final : public Step {
 public:
  Pending(Store& store, std::size_t count, std::uint64_t step) noexcept : store_(store), count_(count), step_(step) {}
  ~Pending() override {
    if (!committed_) store_.abandon(slices());
  }

  std::span<const Slice> slices() const noexcept override { return store_.slices(step_, count_); }
  void write(int layer, HeadRange heads, Rows k, Rows v) noexcept override {
    for (const Slice& slice : slices()) store_.write(layer, slice, heads, k, v);
  }
  View view(int layer, int slice) const noexcept override {
    return store_.step_view(layer, slices()[static_cast<std::size_t>(slice)]);
  }
  void commit() noexcept override {
    if (!committed_) store_.commit(slices());
    committed_ = true;
  }

 private:
  Store& store_;
  std::size_t count_;
  std::uint64_t step_;
  bool committed_ = false;
};

}  // namespace stet::kv
