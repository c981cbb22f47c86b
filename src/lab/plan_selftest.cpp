#include "lab/plan_selftest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "sample/sampler.hpp"
#include "stet/cache.hpp"

namespace stet::lab {
namespace {

constexpr std::size_t kMostBytes = std::size_t{64} << 20;

// Numbers of one set, all named by the seed and the set.
class Draw {
 public:
  Draw(std::uint64_t seed, int set) : seed_(seed), set_(static_cast<std::uint64_t>(set)) {}

  /// A whole number of [low, high].
  Pos from_to(Pos low, Pos high) {
    return low + static_cast<Pos>(sample::uniform(seed_, set_, next_++) * static_cast<double>(high - low + 1));
  }
  bool one_in(Pos n) { return from_to(1, n) == 1; }
  template <class T, std::size_t N>
  T of(const std::array<T, N>& values) {
    return values[static_cast<std::size_t>(from_to(0, N - 1))];
  }

 private:
  std::uint64_t seed_, set_;
  Pos next_ = 0;
};

constexpr std::array kCodecs = {Codec::f64, Codec::f32, Codec::bf16, Codec::f16, Codec::int8, Codec::int4};

CacheSpec random_spec(Draw& draw) {
  CacheSpec spec;
  LayerSpec layer;
  const Pos layers = draw.from_to(1, 6);
  for (Pos i = 0; i < layers; ++i) {
    if (i == 0 || draw.one_in(2)) {  // else like the one before, so that groups have several layers
      layer = {static_cast<int>(draw.from_to(1, 5)),
               static_cast<int>(draw.from_to(1, 130)),
               static_cast<int>(draw.from_to(1, 130)),
               draw.of(kCodecs),
               draw.of(kCodecs),
               {}};
      if (draw.one_in(2)) layer.span = {draw.from_to(1, 700), draw.one_in(2) ? draw.from_to(0, 40) : 0};
    }
    spec.layers.push_back(layer);
  }
  return spec;
}

CacheOptions random_options(Draw& draw) {
  CacheOptions options;
  options.layout = draw.of(std::array{Layout::contiguous, Layout::growing, Layout::paged, Layout::paged});
  options.retain = draw.one_in(4) ? Retain::all : Retain::visible;
  options.max_len = draw.one_in(3) ? draw.from_to(1, 40) : draw.from_to(1, 3000);
  options.max_step_tokens = draw.one_in(3) ? 0 : draw.from_to(1, options.max_len);
  options.max_seqs = static_cast<int>(draw.from_to(1, 6));
  if (options.layout == Layout::paged) {
    options.page_tokens = draw.of(std::array<Pos, 4>{16, 32, 64, 128});
    if (draw.one_in(2)) options.pool_tokens = draw.from_to(1, options.max_len * options.max_seqs);
    if (draw.one_in(2)) options.shuffle = static_cast<std::uint64_t>(draw.from_to(0, 1000));
  }
  if (draw.one_in(20)) options.poison = std::numeric_limits<double>::quiet_NaN();
  return options;
}

std::string words(const CacheSpec& spec, const CacheOptions& o) {
  return fmt::format("{} layers, {}, page {}, {} x {} tokens, step {}, pool {}", spec.layers.size(), name_of(o.layout),
                     o.page_tokens, o.max_seqs, o.max_len, o.max_step_tokens, o.pool_tokens);
}

// Opens all sequences and fills them as far as the pool goes: a plan is binding also then. The rows are reserved and
// committed, not written.
void fill(Cache& cache, const CacheOptions& options) {
  const Pos step = options.max_step_tokens > 0 ? options.max_step_tokens : options.max_len;
  for (int i = 0; i < options.max_seqs; ++i) {
    const auto seq = cache.open();
    if (!seq) return;
    for (Pos at = 0; at < options.max_len;) {
      const Append append{*seq, static_cast<int>(std::min(step, options.max_len - at))};
      auto begun = cache.begin({&append, 1});
      if (!begun) break;
      (*begun)->commit();
      at += append.tokens;
    }
  }
}

class Selftest {
 public:
  void run(const CacheSpec& spec, const CacheOptions& options) {
    ++report_.planned;
    const auto plan = plan_cache(spec, options);
    if (!plan) return fault(spec, options, plan.error().message);
    if (plan->reserved <= kMostBytes) make(spec, options, *plan);

    CacheOptions longer = options, more = options;
    longer.max_len += 1 + options.max_len / 3;
    more.max_seqs += 1;
    CacheSpec wider = spec;
    for (LayerSpec& layer : wider.layers) layer.k = layer.v = Codec::f64;
    compare("a longer context", spec, options, spec, longer);
    compare("more sequences", spec, options, spec, more);
    compare("f64", spec, options, wider, options);
  }

  PlanSelftest take() { return std::move(report_); }

 private:
  void make(const CacheSpec& spec, const CacheOptions& options, const CachePlan& plan) {
    auto cache = make_cache(spec, options);
    if (!cache) return fault(spec, options, cache.error().message);
    ++report_.made;
    report_.bytes += plan.reserved;
    const auto check = [&](const char* when) {
      const std::size_t reserved = (*cache)->usage().reserved;
      if (reserved == plan.reserved) return;
      fault(spec, options, fmt::format("{} bytes reserved {}, {} planned", reserved, when, plan.reserved));
    };
    check("when made");
    fill(**cache, options);
    check("when full");
  }

  void compare(const char* what, const CacheSpec& spec, const CacheOptions& options, const CacheSpec& larger_spec,
               const CacheOptions& larger_options) {
    ++report_.compared;
    const auto plan = plan_cache(spec, options), larger = plan_cache(larger_spec, larger_options);
    if (!larger) return fault(spec, options, fmt::format("{}: {}", what, larger.error().message));
    // A wider codec can make layers alike, which then share tables: only their cells must cost no less.
    const bool tables = &spec != &larger_spec;
    if (larger->bytes_per_sequence < plan->bytes_per_sequence || (!tables && larger->reserved < plan->reserved)) {
      fault(spec, options, fmt::format("{} costs less: {} bytes for {}", what, larger->reserved, plan->reserved));
    }
  }

  void fault(const CacheSpec& spec, const CacheOptions& options, const std::string& what) {
    report_.faults.push_back(fmt::format("{}: {}", words(spec, options), what));
  }

  PlanSelftest report_;
};

}  // namespace

Result<PlanSelftest> plan_selftest(int sets, std::uint64_t seed, const std::function<bool(int)>& keep_going) {
  Selftest selftest;
  for (int set = 0; set < sets; ++set) {
    if (keep_going && !keep_going(set)) return fail(Code::interrupted, "interrupted");
    Draw draw(seed, set);
    const CacheSpec spec = random_spec(draw);
    selftest.run(spec, random_options(draw));
  }
  return selftest.take();
}

}  // namespace stet::lab
