// Caches that pass everything on to another one: to watch what a path really did, or to plant a fault in it. Engine,
// model and kernels cannot tell the difference, so no code of theirs knows about experiments.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stet/cache.hpp"

namespace stet::lab {

class ForwardingStep : public Step {
 public:
  explicit ForwardingStep(std::unique_ptr<Step> inner) : inner_(std::move(inner)) {}
  std::span<const Slice> slices() const noexcept override { return inner_->slices(); }
  void write(int layer, HeadRange heads, Rows k, Rows v) noexcept override { inner_->write(layer, heads, k, v); }
  View view(int layer, int slice) const noexcept override { return inner_->view(layer, slice); }
  void commit() noexcept override { inner_->commit(); }

 protected:
  std::unique_ptr<Step> inner_;
};

class ForwardingCache : public Cache {
 public:
  explicit ForwardingCache(std::unique_ptr<Cache> inner) : inner_(std::move(inner)) {}
  const CacheSpec& spec() const noexcept override { return inner_->spec(); }
  const CacheOptions& options() const noexcept override { return inner_->options(); }
  Result<Seq> open() override { return inner_->open(); }
  Result<void> close(Seq seq) override { return inner_->close(seq); }
  Result<Pos> length(Seq seq) const override { return inner_->length(seq); }
  Result<void> truncate(Seq seq, Pos len) override { return inner_->truncate(seq, len); }
  Result<std::unique_ptr<Step>> begin(std::span<const Append> appends) override { return inner_->begin(appends); }
  Result<View> peek(Seq seq, int layer) const override { return inner_->peek(seq, layer); }
  CacheUsage usage() const noexcept override { return inner_->usage(); }
  Result<Pos> oldest_restorable(Seq seq) const override { return inner_->oldest_restorable(seq); }
  Result<Seq> fork(Seq seq, Pos upto) override { return inner_->fork(seq, upto); }
  Result<Seq> restore(Pos length, std::span<const View> layers) override { return inner_->restore(length, layers); }
  std::vector<PageInfo> pages() const override { return inner_->pages(); }

 protected:
  std::unique_ptr<Cache> inner_;
};

/// Puts something between a cache and those who use it; empty: nothing.
using Wrap = std::function<Result<std::unique_ptr<Cache>>(std::unique_ptr<Cache>)>;

/// Writes down the shape of every step, every truncation, fork and restore: what a path did, as opposed to what it was
/// asked for.
class ObservedCache final : public ForwardingCache {
 public:
  using ForwardingCache::ForwardingCache;
  Result<void> truncate(Seq seq, Pos len) override;
  Result<std::unique_ptr<Step>> begin(std::span<const Append> appends) override;
  Result<Seq> fork(Seq seq, Pos upto) override;
  Result<Seq> restore(Pos length, std::span<const View> layers) override;

  /// For people and for comparing: "steps 3 x 16, 2 sequences at most, poisoned". Equal records mean the same path.
  std::string record() const;

 private:
  std::vector<std::pair<std::string, std::size_t>> events_;  // run-length encoded
  void note(std::string event);
};

enum class Plant : std::uint8_t {
  flip_bit,   // one bit of one stored key: the highest of the fraction of the largest element of the first head
  stale_row,  // one row keeps what was stored before it: its neighbour's
};

/// Damages the row at `position` of layer 0 as it is written; everything else passes.
class PlantedCache final : public ForwardingCache {
 public:
  PlantedCache(std::unique_ptr<Cache> inner, Plant plant, Pos position)
      : ForwardingCache(std::move(inner)), plant_(plant), position_(position) {}
  Result<std::unique_ptr<Step>> begin(std::span<const Append> appends) override;

 private:
  Plant plant_;
  Pos position_;
};

Wrap planted(Plant plant, Pos position);

}  // namespace stet::lab
