// Faults of caches that store less than what was computed.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "lab/faults.hpp"

namespace stet::lab {
namespace {

// Values of T as they lie in rows, all heads of each row.
struct Copy {
  std::vector<std::byte> data;
  Rows rows;

  Copy(Rows from, int count, int columns) : data(static_cast<std::size_t>(count) * row_bytes(from.type, columns)) {
    const std::size_t bytes = row_bytes(from.type, columns);
    for (std::size_t r = 0; r < static_cast<std::size_t>(count); ++r) {
      std::memcpy(data.data() + r * bytes, from.data + r * from.row_stride, bytes);
    }
    rows = {from.type, data.data(), bytes};
  }
  static std::size_t row_bytes(DType type, int columns) { return static_cast<std::size_t>(columns) * size_of(type); }
};

int rows_of(std::span<const Slice> slices) {
  return slices.back().row + slices.back().tokens;
}

// ---- Fresh rows

// The rows of a step as they are stored, of one layer, in double, which holds every stored value exactly.
struct Decoded {
  std::vector<double> k, v;
  Rows k_rows, v_rows;

  Decoded(const Step& step, int layer, const LayerSpec& shape, HeadRange heads)
      : k(count(step, shape.kv_heads, shape.k_dim)), v(count(step, shape.kv_heads, shape.v_dim)) {
    const auto slices = step.slices();
    for (std::size_t s = 0; s < slices.size(); ++s) {
      const View view = step.view(layer, static_cast<int>(s));
      for (int t = 0; t < slices[s].tokens; ++t) {
        for (int head = heads.begin; head < heads.end; ++head) {
          const int row = slices[s].row + t;
          (void)read_key(view, head, slices[s].first + t, at(k, row, head, shape.kv_heads, shape.k_dim));
          (void)read_value(view, head, slices[s].first + t, at(v, row, head, shape.kv_heads, shape.v_dim));
        }
      }
    }
    const auto heads_all = static_cast<std::size_t>(shape.kv_heads);
    k_rows = {DType::f64, reinterpret_cast<const std::byte*>(k.data()),
              heads_all * static_cast<std::size_t>(shape.k_dim) * sizeof(double)};
    v_rows = {DType::f64, reinterpret_cast<const std::byte*>(v.data()),
              heads_all * static_cast<std::size_t>(shape.v_dim) * sizeof(double)};
  }

 private:
  static std::size_t count(const Step& step, int heads, int dim) {
    return static_cast<std::size_t>(rows_of(step.slices())) * static_cast<std::size_t>(heads) *
           static_cast<std::size_t>(dim);
  }
  static std::span<double> at(std::vector<double>& values, int row, int head, int heads, int dim) {
    const std::size_t index =
        (static_cast<std::size_t>(row) * static_cast<std::size_t>(heads) + static_cast<std::size_t>(head)) *
        static_cast<std::size_t>(dim);
    return {values.data() + index, static_cast<std::size_t>(dim)};
  }
};

// A second cache in the type of the arithmetic holds past rows as they were decoded and, until its step is thrown
// away, those of the step as they were computed.
class FreshStep final : public ForwardingStep {
 public:
  struct Shadow {
    Cache* cache;
    std::unique_ptr<Step> step;
    std::vector<Append> appends;
    bool* broken;
    bool stored;
  };
  FreshStep(std::unique_ptr<Step> inner, Shadow shadow, const CacheSpec& spec)
      : ForwardingStep(std::move(inner)), shadow_(std::move(shadow)), spec_(spec) {}

  void write(int layer, HeadRange heads, Rows k, Rows v) noexcept override {
    inner_->write(layer, heads, k, v);
    if (!shadow_.stored) return shadow_.step->write(layer, heads, k, v);
    const Decoded decoded(*inner_, layer, spec_.layers[static_cast<std::size_t>(layer)], heads);
    shadow_.step->write(layer, heads, decoded.k_rows, decoded.v_rows);
  }
  View view(int layer, int slice) const noexcept override { return shadow_.step->view(layer, slice); }
  void commit() noexcept override {
    std::vector<Decoded> decoded;
    for (std::size_t layer = 0; layer < spec_.layers.size(); ++layer) {
      const LayerSpec& shape = spec_.layers[layer];
      decoded.emplace_back(*inner_, static_cast<int>(layer), shape, HeadRange{0, shape.kv_heads});
    }
    inner_->commit();
    shadow_.step.reset();
    auto again = shadow_.cache->begin(shadow_.appends);
    *shadow_.broken = !again;
    if (!again) return;
    for (std::size_t layer = 0; layer < decoded.size(); ++layer) {
      (*again)->write(static_cast<int>(layer), {0, spec_.layers[layer].kv_heads}, decoded[layer].k_rows,
                      decoded[layer].v_rows);
    }
    (*again)->commit();
  }

 private:
  Shadow shadow_;
  const CacheSpec& spec_;
};

class FreshRowsCache final : public ForwardingCache {
 public:
  FreshRowsCache(std::unique_ptr<Cache> inner, std::unique_ptr<Cache> shadow, bool stored)
      : ForwardingCache(std::move(inner)), shadow_(std::move(shadow)), stored_(stored) {}

  Result<Seq> open() override { return both(inner_->open(), shadow_->open()); }
  Result<void> close(Seq seq) override {
    (void)shadow_->close(seq);
    return inner_->close(seq);
  }
  Result<void> truncate(Seq seq, Pos len) override {
    if (auto ok = shadow_->truncate(seq, len); !ok) return ok;
    return inner_->truncate(seq, len);
  }
  Result<Seq> fork(Seq seq, Pos upto) override { return both(inner_->fork(seq, upto), shadow_->fork(seq, upto)); }
  Result<Seq> restore(Pos, std::span<const View>) override {
    return fail(Code::unsupported, "a cache with a shadow cannot restore");
  }
  Result<std::unique_ptr<Step>> begin(std::span<const Append> appends) override {
    if (broken_) return fail(Code::corrupt, "the shadow of a cache has lost a step");
    auto step = inner_->begin(appends);
    if (!step) return step;
    auto shadow = shadow_->begin(appends);
    if (!shadow) return shadow;
    return std::make_unique<FreshStep>(
        std::move(*step),
        FreshStep::Shadow{shadow_.get(), std::move(*shadow), {appends.begin(), appends.end()}, &broken_, stored_},
        spec());
  }

 private:
  // The same calls give the same handles.
  static Result<Seq> both(Result<Seq> a, const Result<Seq>& b) {
    if (a && b && *a == *b) return a;
    if (!a) return a;
    return b ? fail(Code::corrupt, "a cache and its shadow gave different sequences") : pass(b);
  }

  std::unique_ptr<Cache> shadow_;
  bool stored_, broken_ = false;
};

// ---- Forgotten scales

using RowKey = std::pair<std::uint32_t, Pos>;         // the sequence's index, and the position
using Scales = std::map<RowKey, std::vector<float>>;  // [layer][KV head][of K, of V]

std::size_t scale_index(const CacheSpec& spec, int layer, int head) {
  std::size_t at = 0;
  for (int i = 0; i < layer; ++i) at += static_cast<std::size_t>(spec.layers[static_cast<std::size_t>(i)].kv_heads);
  return 2 * (at + static_cast<std::size_t>(head));
}

float stored_scale(const View& view, int head, Pos pos, std::size_t scales) {
  float scale = 0;
  std::memcpy(&scale,
              view.cell(pos / kCell) + static_cast<std::size_t>(head) * view.layout->head_stride + scales +
                  static_cast<std::size_t>(pos % kCell) * sizeof scale,
              sizeof scale);
  return scale;
}

// Makes the encoder choose `wanted` as the scale of a head's row, with the codes that the row has anyway: codes come of
// the row's values relative to the largest.
template <class T>
void rescale(T* x, int dim, Codec codec, float wanted) {
  T largest = 0;
  for (int d = 0; d < dim; ++d) {
    if (std::abs(x[d]) > std::abs(largest)) largest = x[d];
  }
  const T own = codec == Codec::int8 ? std::abs(largest) / T(127) : largest / T(-8);
  if (own == 0 || wanted == 0) return;
  for (int d = 0; d < dim; ++d) x[d] = x[d] / own * static_cast<T>(wanted);
}

class ForgettingStep final : public ForwardingStep {
 public:
  ForgettingStep(std::unique_ptr<Step> inner, Scales& scales, const CacheSpec& spec)
      : ForwardingStep(std::move(inner)), scales_(scales), spec_(spec) {}

  void write(int layer, HeadRange heads, Rows k, Rows v) noexcept override {
    const LayerSpec& shape = spec_.layers[static_cast<std::size_t>(layer)];
    const int rows = rows_of(slices());
    Copy keys(k, rows, shape.kv_heads * shape.k_dim), values(v, rows, shape.kv_heads * shape.v_dim);
    for (const Slice& slice : slices()) {
      for (int t = 0; t < slice.tokens; ++t) {
        const auto found = scales_.find({slice.seq.index, slice.first + t});
        if (found == scales_.end()) continue;
        for (int head = heads.begin; head < heads.end; ++head) {
          const float* old = found->second.data() + scale_index(spec_, layer, head);
          if (has_scale(shape.k)) rescale(keys, slice.row + t, head, shape.k_dim, {shape.k, old[0]});
          if (has_scale(shape.v)) rescale(values, slice.row + t, head, shape.v_dim, {shape.v, old[1]});
        }
      }
    }
    inner_->write(layer, heads, keys.rows, values.rows);
  }

  void commit() noexcept override {
    for (const Slice& slice : slices()) {
      for (int t = 0; t < slice.tokens; ++t) scales_.erase({slice.seq.index, slice.first + t});
    }
    inner_->commit();
  }

 private:
  static void rescale(Copy& copy, int row, int head, int dim, std::pair<Codec, float> to) {
    std::byte* at = copy.data.data() + static_cast<std::size_t>(row) * copy.rows.row_stride +
                    Copy::row_bytes(copy.rows.type, head * dim);
    if (copy.rows.type == DType::f64) {
      lab::rescale(reinterpret_cast<double*>(at), dim, to.first, to.second);
    } else {
      lab::rescale(reinterpret_cast<float*>(at), dim, to.first, to.second);
    }
  }

  Scales& scales_;
  const CacheSpec& spec_;
};

class ForgottenScalesCache final : public ForwardingCache {
 public:
  using ForwardingCache::ForwardingCache;

  Result<void> truncate(Seq seq, Pos len) override {
    const auto length = inner_->length(seq);
    if (!length) return pass(length);
    Scales cut;
    for (int layer = 0; layer < static_cast<int>(spec().layers.size()); ++layer) {
      const auto view = inner_->peek(seq, layer);
      if (!view) return pass(view);
      for (Pos pos = std::max<Pos>(len, 0); pos < *length; ++pos) {
        if (view->has(pos)) remember(*view, layer, pos, cut[{seq.index, pos}]);
      }
    }
    auto done = inner_->truncate(seq, len);
    if (!done) return done;
    // Rows cut off before and not written since are beyond the length, and still remembered.
    for (auto& [row, scales] : cut) scales_[row] = std::move(scales);
    return {};
  }
  Result<void> close(Seq seq) override {
    auto done = inner_->close(seq);
    if (done) std::erase_if(scales_, [&](const auto& entry) { return entry.first.first == seq.index; });
    return done;
  }
  Result<std::unique_ptr<Step>> begin(std::span<const Append> appends) override {
    auto step = inner_->begin(appends);
    if (!step) return step;
    return std::make_unique<ForgettingStep>(std::move(*step), scales_, spec());
  }

 private:
  void remember(const View& view, int layer, Pos pos, std::vector<float>& scales) const {
    scales.resize(scale_index(spec(), static_cast<int>(spec().layers.size()), 0));
    for (int head = 0; head < view.layout->kv_heads; ++head) {
      float* to = scales.data() + scale_index(spec(), layer, head);
      if (has_scale(view.layout->k)) to[0] = stored_scale(view, head, pos, view.layout->k_scales);
      if (has_scale(view.layout->v)) to[1] = stored_scale(view, head, pos, view.layout->v_scales);
    }
  }

  Scales scales_;
};

}  // namespace

Wrap fresh_rows(bool stored) {
  return [stored](std::unique_ptr<Cache> cache) -> Result<std::unique_ptr<Cache>> {
    CacheSpec wide = cache->spec();
    for (LayerSpec& layer : wide.layers) {
      layer.k = layer.k == Codec::f64 ? Codec::f64 : Codec::f32;
      layer.v = layer.v == Codec::f64 ? Codec::f64 : Codec::f32;
    }
    auto shadow = make_cache(wide, cache->options());
    if (!shadow) return pass(shadow);
    return std::make_unique<FreshRowsCache>(std::move(cache), std::move(*shadow), stored);
  };
}

Wrap forgotten_scales() {
  return [](std::unique_ptr<Cache> cache) -> Result<std::unique_ptr<Cache>> {
    return std::make_unique<ForgottenScalesCache>(std::move(cache));
  };
}

}  // namespace stet::lab
