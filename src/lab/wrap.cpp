#include "lab/wrap.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace stet::lab {

void ObservedCache::note(std::string event) {
  if (!events_.empty() && events_.back().first == event) {
    ++events_.back().second;
  } else {
    events_.emplace_back(std::move(event), 1);
  }
}

Result<void> ObservedCache::truncate(Seq seq, Pos len) {
  auto done = inner_->truncate(seq, len);
  if (done) note(fmt::format("truncate to {}", len));
  return done;
}

Result<std::unique_ptr<Step>> ObservedCache::begin(std::span<const Append> appends) {
  auto step = inner_->begin(appends);
  if (step) {
    std::string rows;
    for (const Append& append : appends) rows += fmt::format("{}{}", rows.empty() ? "" : "+", append.tokens);
    note(std::move(rows));
  }
  return step;
}

Result<Seq> ObservedCache::fork(Seq seq, Pos upto) {
  auto done = inner_->fork(seq, upto);
  if (done) note(fmt::format("fork at {}", upto));
  return done;
}

Result<Seq> ObservedCache::restore(Pos length, std::span<const View> layers) {
  auto done = inner_->restore(length, layers);
  if (done) note(fmt::format("restore {}", length));
  return done;
}

std::string ObservedCache::record() const {
  std::string text = name_of(options().layout);
  if (options().layout == Layout::paged) {
    text += fmt::format(", pages of {}{}", options().page_tokens, options().shuffle ? ", shuffled" : "");
  }
  const LayerSpec& layer = spec().layers.front();
  text += fmt::format(", {} and {}", name_of(layer.k), name_of(layer.v));
  if (std::any_of(spec().layers.begin(), spec().layers.end(), [](const auto& l) { return l.span.window > 0; })) {
    text += options().retain == Retain::all ? ", windows as masks" : ", windows evict";
  }
  text += ", rows a step:";
  constexpr std::size_t kShown = 6;
  for (std::size_t i = 0; i < events_.size() && i < kShown; ++i) {
    text += fmt::format(" {}", events_[i].first);
    if (events_[i].second > 1) text += fmt::format(" ({} times)", events_[i].second);
  }
  if (events_.size() > kShown) {
    // The rest as a number, so that records differ when the paths do.
    std::uint64_t digest = 14695981039346656037U;  // FNV-1a
    for (const auto& [event, times] : events_) {
      for (const char c : event + fmt::format("*{};", times))
        digest = (digest ^ static_cast<unsigned char>(c)) * 1099511628211U;
    }
    text += fmt::format(" ... {} more (digest {:016x})", events_.size() - kShown, digest);
  }
  if (options().poison) text += fmt::format(", unused slots {}", *options().poison);
  return text;
}

namespace {

class PlantedStep final : public ForwardingStep {
 public:
  PlantedStep(std::unique_ptr<Step> inner, Plant plant, Pos position, CacheSpec spec)
      : ForwardingStep(std::move(inner)), plant_(plant), position_(position), spec_(std::move(spec)) {}

  void write(int layer, HeadRange heads, Rows k, Rows v) noexcept override {
    const int row = layer == 0 ? damaged_row() : -1;
    if (row < 0) return inner_->write(layer, heads, k, v);
    // Copies of this step's keys and values, with the damage in them.
    const auto& shape = spec_.layers[0];
    std::vector<std::byte> keys = copy(k, shape.kv_heads * shape.k_dim), values = copy(v, shape.kv_heads * shape.v_dim);
    const std::size_t k_bytes = keys.size() / static_cast<std::size_t>(rows()),
                      at = static_cast<std::size_t>(row) * k_bytes;
    if (plant_ == Plant::flip_bit) {
      // Not the lowest bit: on a trained model rounding can swallow that, and a fault that does nothing shows nothing.
      flip_fraction(k.type, keys.data() + at, shape.k_dim);
    } else if (row > 0) {
      const std::size_t v_bytes = values.size() / static_cast<std::size_t>(rows());
      std::memcpy(keys.data() + at, keys.data() + at - k_bytes, k_bytes);
      std::memcpy(values.data() + static_cast<std::size_t>(row) * v_bytes,
                  values.data() + static_cast<std::size_t>(row - 1) * v_bytes, v_bytes);
    } else {
      std::fill(keys.begin() + static_cast<std::ptrdiff_t>(at),
                keys.begin() + static_cast<std::ptrdiff_t>(at + k_bytes), std::byte{0});
    }
    inner_->write(layer, heads, {k.type, keys.data(), k_bytes},
                  {v.type, values.data(), values.size() / static_cast<std::size_t>(rows())});
  }

 private:
  int rows() const noexcept {
    const Slice& last = slices().back();
    return last.row + last.tokens;
  }
  int damaged_row() const noexcept {
    for (const Slice& s : slices()) {
      if (position_ >= s.first && position_ < s.first + s.tokens) return s.row + static_cast<int>(position_ - s.first);
    }
    return -1;
  }
  static void flip_fraction(DType type, std::byte* row, int n) noexcept {
    const auto magnitude = [&](int i) {
      double x = 0;
      float y = 0;
      if (type == DType::f64) {
        std::memcpy(&x, row + static_cast<std::size_t>(i) * sizeof x, sizeof x);
      } else {
        std::memcpy(&y, row + static_cast<std::size_t>(i) * sizeof y, sizeof y);
      }
      return std::abs(type == DType::f64 ? x : static_cast<double>(y));
    };
    int largest = 0;
    for (int i = 1; i < n; ++i) largest = magnitude(i) > magnitude(largest) ? i : largest;
    // Little endian; bit 51 of a double, 22 of a float.
    std::byte* element = row + static_cast<std::size_t>(largest) * size_of(type);
    if (type == DType::f64) {
      element[6] ^= std::byte{1U << 3U};
    } else {
      element[2] ^= std::byte{1U << 6U};
    }
  }
  std::vector<std::byte> copy(Rows from, int columns) const {
    const std::size_t bytes = static_cast<std::size_t>(columns) * size_of(from.type);
    std::vector<std::byte> to(bytes * static_cast<std::size_t>(rows()));
    for (int r = 0; r < rows(); ++r)
      std::memcpy(to.data() + static_cast<std::size_t>(r) * bytes,
                  from.data + static_cast<std::size_t>(r) * from.row_stride, bytes);
    return to;
  }

  Plant plant_;
  Pos position_;
  CacheSpec spec_;
};

}  // namespace

Result<std::unique_ptr<Step>> PlantedCache::begin(std::span<const Append> appends) {
  auto step = inner_->begin(appends);
  if (!step) return step;
  return std::make_unique<PlantedStep>(std::move(*step), plant_, position_, spec());
}

Wrap planted(Plant plant, Pos position) {
  return [=](std::unique_ptr<Cache> cache) -> Result<std::unique_ptr<Cache>> {
    return std::make_unique<PlantedCache>(std::move(cache), plant, position);
  };
}

}  // namespace stet::lab
