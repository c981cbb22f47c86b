// Attention alone behind a long context: what codecs and pages of the cache change in the time of one query's
// attention.
//
//   attend_cache [--threads 1] [--context 8192] [--layers 6] [--dim 64] [--rounds 15] [--only bf16|f16|int8|int4]
//                [--cpu-time] [--json]
//
// GPT-2's heads (768 / dim of them), one query, `layers` layers one after the other, so that a cache is read from
// memory and not from the CPU's caches. A row is a codec in a layout: contiguous, or pages of 16 to 128 tokens whose
// numbers are shuffled. Rows take turns in every round, and ratios are medians over the rounds: a page's is to the
// contiguous cache of its codec, a codec's to the contiguous f32 cache. Before a row is timed its result must be that
// of kernels/ref, bit by bit. --cpu-time counts one thread's own seconds instead of the clock's: for a machine that
// others use too.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <random>

#include "kernels/run.hpp"
#include "measure.hpp"
#include "stet/cache.hpp"

namespace stet::bench {
namespace {

constexpr std::size_t kWidth = 768;

struct Setup {
  int threads = 1, context = 8192, layers = 6, dim = 64, rounds = 15;
  std::string only;
  bool json = false, cpu_time = false;

  int heads() const { return static_cast<int>(kWidth) / dim; }
};

std::vector<float> random_values(std::size_t n, unsigned seed) {
  std::mt19937 engine(seed);
  std::vector<float> values(n);
  for (float& v : values) v = static_cast<float>(engine()) * 0x1p-31F - 1;
  return values;
}

// A full cache of one codec.
struct Filled {
  Codec codec = Codec::f32;
  std::unique_ptr<Cache> cache;
  Seq seq;
  double bytes = 0;
};

Result<Filled> fill(Codec codec, const Setup& setup, std::span<const float> k, std::span<const float> v) {
  Filled filled;
  filled.codec = codec;
  CacheSpec spec;
  spec.layers.assign(static_cast<std::size_t>(setup.layers), {setup.heads(), setup.dim, setup.dim, codec, codec, {}});
  CacheOptions options;
  options.max_len = setup.context;
  auto cache = make_cache(spec, options);
  if (!cache) return pass(cache);
  filled.cache = std::move(*cache);
  auto seq = filled.cache->open();
  if (!seq) return pass(seq);
  filled.seq = *seq;
  const Append append{*seq, setup.context};
  auto step = filled.cache->begin({&append, 1});
  if (!step) return pass(step);
  const auto rows = [](std::span<const float> x) {
    return Rows{DType::f32, reinterpret_cast<const std::byte*>(x.data()), kWidth * sizeof(float)};
  };
  for (int layer = 0; layer < setup.layers; ++layer) (*step)->write(layer, {0, setup.heads()}, rows(k), rows(v));
  (*step)->commit();
  filled.bytes = static_cast<double>(filled.cache->usage().used);
  return filled;
}

// One way to find the cells of a full cache. With page_tokens the sequence's pages lie in any order, so its tokens are
// others than those of the contiguous cache, but as many, in the same memory.
struct Variant {
  std::size_t cache = 0;
  Pos page_tokens = 0;  // 0: contiguous
  std::vector<std::vector<std::uint32_t>> cells;
  std::vector<View> views;  // of each layer
  std::vector<double> ms;
};

std::vector<std::uint32_t> shuffled(std::span<const std::uint32_t> cells, Pos page_tokens, std::mt19937& engine) {
  const auto page = static_cast<std::size_t>(page_tokens / kCell);
  std::vector<std::size_t> order(cells.size() / page);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::shuffle(order.begin(), order.end(), engine);
  std::vector<std::uint32_t> numbers;
  for (const std::size_t p : order) {
    for (std::size_t i = 0; i < page; ++i) numbers.push_back(cells[p * page + i]);
  }
  return numbers;
}

Result<Variant> variant(const std::vector<Filled>& caches, std::size_t cache, Pos page_tokens, int layers) {
  Variant made;
  made.cache = cache;
  made.page_tokens = page_tokens;
  std::mt19937 engine(7);  // one order for all layers, as pages of a pool have
  for (int layer = 0; layer < layers; ++layer) {
    auto view = caches[cache].cache->peek(caches[cache].seq, layer);
    if (!view) return pass(view);
    if (page_tokens > 0 && layer == 0) made.cells.push_back(shuffled(view->cells, page_tokens, engine));
    made.views.push_back(*view);
  }
  if (page_tokens > 0) {
    for (View& view : made.views) view.cells = made.cells.front();
  }
  return made;
}

class Attention {
 public:
  explicit Attention(const Setup& setup) : setup_(setup), pool_(setup.threads), q_(random_values(kWidth, 3)) {}

  base::ThreadPool& pool() { return pool_; }

  void layer(const View& view, const kernels::Target& target, std::vector<float>& out) {
    const kernels::Attend<float> op{view,   setup_.context - 1, 1,     setup_.heads(), 0.125F, q_.data(),
                                    kWidth, out.data(),         kWidth};
    kernels::run_attend<float>({&pool_, &target}, setup_.heads(), [](int) {}, {&op, 1});
  }

  bool same_as_ref(const Variant& v) {
    std::vector<float> out(kWidth), expected(kWidth);
    layer(v.views.front(), kernels::targets().front(), out);
    layer(v.views.front(), kernels::targets().back(), expected);
    return std::memcmp(out.data(), expected.data(), kWidth * sizeof(float)) == 0;
  }

  void time(Variant& v) {
    const double start = now();
    for (const View& view : v.views) layer(view, kernels::targets().front(), out_);
    v.ms.push_back((now() - start) * 1e3);
  }

 private:
  Setup setup_;
  base::ThreadPool pool_;
  std::vector<float> q_, out_ = std::vector<float>(kWidth);
};

// The median over the rounds of a / b.
double ratio(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < a.size(); ++i) ratios.push_back(a[i] / b[i]);
  return median(ratios);
}

struct Report {
  std::vector<Filled> caches;
  std::vector<Variant> variants;  // of a codec the contiguous one first; the first codec is the one to compare with
  std::vector<double> read_gb_s;
};

Result<Report> measure(const Setup& setup) {
  Report report;
  const std::size_t n = static_cast<std::size_t>(setup.context) * kWidth;
  const auto k = random_values(n, 1), v = random_values(n, 2);
  for (const Codec codec : {Codec::f32, Codec::bf16, Codec::f16, Codec::int8, Codec::int4}) {
    if (!setup.only.empty() && codec != Codec::f32 && setup.only != name_of(codec)) continue;
    auto filled = fill(codec, setup, k, v);
    if (!filled) return pass(filled);
    report.caches.push_back(std::move(*filled));
  }
  Attention attention(setup);
  for (std::size_t c = 0; c < report.caches.size(); ++c) {
    for (const Pos page : {0, 16, 32, 64, 128}) {
      auto made = variant(report.caches, c, page, setup.layers);
      if (!made) return pass(made);
      if (!attention.same_as_ref(*made)) {
        return fail(Code::corrupt, fmt::format("{}, page {}: differs from kernels/ref, so it is not timed",
                                               name_of(report.caches[c].codec), page));
      }
      report.variants.push_back(std::move(*made));
    }
  }
  const auto all = report.variants.front().views.front();
  const std::span<const std::byte> storage(all.base, all.cells.size() * all.layout->bytes);
  for (int round = -1; round < setup.rounds; ++round) {
    for (std::size_t i = 0; i < report.variants.size(); ++i) {
      // There and back, so that no row always follows the same one.
      attention.time(report.variants[round % 2 == 0 ? i : report.variants.size() - 1 - i]);
    }
    report.read_gb_s.push_back(read_gb_s(attention.pool(), storage));
    if (round < 0) {
      for (Variant& warmed : report.variants) warmed.ms.clear();
    }
  }
  return report;
}

void print(const Setup& setup, const Report& report) {
  const double read = *std::max_element(report.read_gb_s.begin(), report.read_gb_s.end());
  nlohmann::json rows = nlohmann::json::array();
  if (!setup.json) {
    std::cout
        << fmt::format("{} threads, {} tokens, {} layers, {} rounds, kernels {}{}; reads up to {:.1f} GB/s\n\n",
                       setup.threads, setup.context, setup.layers, setup.rounds, kernels::targets().front().name,
                       setup.cpu_time ? ", CPU time" : "", read)
        << "| codec | page | ms | fastest ms | GB/s | of the contiguous | of f32 |\n|---|---|---|---|---|---|---|\n";
  }
  const Variant *f32 = &report.variants.front(), *contiguous = f32;
  for (const Variant& v : report.variants) {
    if (v.page_tokens == 0) contiguous = &v;
    const double ms = median(v.ms), fastest = *std::min_element(v.ms.begin(), v.ms.end());
    const double rate = report.caches[v.cache].bytes / ms / 1e6, pages = ratio(contiguous->ms, v.ms),
                 codec = ratio(f32->ms, v.ms);
    const std::string page = v.page_tokens == 0 ? "contiguous" : std::to_string(v.page_tokens);
    const char* name = name_of(report.caches[v.cache].codec);
    rows.push_back({{"codec", name},
                    {"page", v.page_tokens},
                    {"ms", ms},
                    {"fastest_ms", fastest},
                    {"gb_s", rate},
                    {"of_contiguous", pages},
                    {"of_f32", codec}});
    if (!setup.json) {
      std::cout << fmt::format("| {} | {} | {:.2f} | {:.2f} | {:.1f} | {:.1f} % | {:.2f} |\n", name, page, ms, fastest,
                               rate, pages * 100, codec);
    }
  }
  if (setup.json) {
    std::cout << nlohmann::json{{"threads", setup.threads}, {"context", setup.context}, {"layers", setup.layers},
                                {"rounds", setup.rounds},   {"read_gb_s", read},        {"rows", rows}}
              << '\n';
  }
}

std::optional<Setup> parse(std::span<char* const> args) {
  Setup s;
  for (std::size_t i = 0; i < args.size(); ++i) {
    const std::string_view name = args[i];
    if (name == "--json" || name == "--cpu-time") {
      (name == "--json" ? s.json : s.cpu_time) = true;
      continue;
    }
    if (i + 1 == args.size()) return std::nullopt;
    const std::string_view value = args[++i];
    if (name == "--only") {
      s.only = value;
      continue;
    }
    int number = 0;
    const auto [end, wrong] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (wrong != std::errc{} || end != value.data() + value.size() || number < 1 || number > 1 << 20) {
      return std::nullopt;
    }
    if (name == "--threads") {
      s.threads = number;
    } else if (name == "--context" && number % 128 == 0) {
      s.context = number;
    } else if (name == "--dim" && kWidth % static_cast<std::size_t>(number) == 0) {
      s.dim = number;
    } else if (name == "--layers") {
      s.layers = number;
    } else if (name == "--rounds") {
      s.rounds = number;
    } else {
      return std::nullopt;
    }
  }
  return s;
}

int run(std::span<char* const> args) {
  auto setup = parse(args);
  if (!setup) {
    std::cerr << "usage: attend_cache [--threads N] [--context N, a multiple of 128] [--layers N] [--dim N, a divisor "
                 "of 768] "
                 "[--rounds N] [--only bf16|f16|int8|int4] [--cpu-time] [--json]\n";
    return 2;
  }
  if (!kernels::cpu_fuses()) {
    std::cerr << "attend_cache: this CPU cannot fuse multiply and add\n";
    return 1;
  }
  if (setup->cpu_time) {
    setup->threads = 1;
    count_cpu_time();
  }
  const auto report = measure(*setup);
  if (!report) {
    std::cerr << "attend_cache: " << report.error().message << '\n';
    return 1;
  }
  print(*setup, *report);
  return 0;
}

}  // namespace
}  // namespace stet::bench

int main(int argc, char** argv) {
  return stet::bench::run({argv + 1, argv + argc});
}
