// What the numerics contract costs: the matmuls of GPT-2 124M by the kernels that keep it against the fastest ones here
// that do not (breaking.hpp), taking turns in one run.
//
//   price_of_exactness [--threads 2] [--rounds 9] [--only f32|f16|bf16|int8|int4] [--cpu-time] [--json]
//
// A table row is a median: milliseconds of both, the price (how much longer the exact one took), and how much of its
// bound each reached. One row of activations is bound by the weights' bytes over the read bandwidth, many rows by
// operations over the peak; both bounds are measured between the turns. A kernel whose results are off is not timed.
// --cpu-time counts one thread's own seconds instead of the clock's: for a machine that others use too.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "breaking.hpp"
#include "kernels/run.hpp"
#include "measure.hpp"

namespace stet::bench {
namespace {

using kernels::Packed;
using kernels::Range;

constexpr int kLayers = 12, kPrefillLayers = 3;  // prefill repeats what three layers show
constexpr int kWidth = 768, kVocab = 50257;
constexpr int kRows = 512;
constexpr int kPaddedRows = (kRows + kTileRows - 1) / kTileRows * kTileRows;
constexpr int kRowPart = 32;  // outputs of a task for one row

struct Matrix {
  Packed keep;
  RowMajor rows;
  base::Buffer pairs;  // bf16 only
};

struct Setup {
  int threads = 2, rounds = 9;
  std::string only;
  bool json = false, cpu_time = false;
};

// Uniform in [-a, a), fast and always the same.
void fill(std::span<float> values, std::uint64_t seed, float a) {
  std::uint64_t z = seed * 0x9E3779B97F4A7C15 + 1;
  for (float& v : values) {
    z ^= z << 13;
    z ^= z >> 7;
    z ^= z << 17;
    v = (static_cast<float>(z >> 40) * 0x1p-23F - 1.0F) * a;
  }
}

Result<Matrix> make(DType type, int in, int out, std::uint64_t seed) {
  Matrix m;
  auto keep = Packed::allocate(type, in, out);
  if (!keep) return pass(keep);
  m.keep = std::move(*keep);
  std::vector<float> values(static_cast<std::size_t>(in) * static_cast<std::size_t>(out));
  fill(values, seed, 0.05F);
  m.keep.set_outputs<float>(0, out, values);
  if (type == DType::bf16) {
    auto pairs = pair_up(m.keep);
    if (!pairs) return pass(pairs);
    m.pairs = std::move(*pairs);
    return m;
  }
  auto rows = row_major(m.keep, values);
  if (!rows) return pass(rows);
  m.rows = std::move(*rows);
  return m;
}

// The matrices of one type, and all that the two ways of multiplying by them need.
class Bench {
 public:
  Bench(DType type, const Setup& setup) : type_(type), pool_(setup.threads), on_{&pool_, &kernels::targets().front()} {}

  Result<void> prepare() {
    const int shapes[][2] = {{kWidth, 3 * kWidth}, {kWidth, kWidth}, {kWidth, 4 * kWidth}, {4 * kWidth, kWidth}};
    const int layers = type_ == DType::bf16 ? kPrefillLayers : kLayers;
    const auto count = static_cast<std::size_t>(layers) * 4 + (type_ == DType::bf16 ? 0 : 1);
    std::vector<Result<Matrix>> made(count);
    pool_.run(count, [&](std::size_t i) {
      const bool head = i == static_cast<std::size_t>(layers) * 4;
      made[i] = make(type_, head ? kWidth : shapes[i % 4][0], head ? kVocab : shapes[i % 4][1], i + 1);
    });
    for (auto& m : made) {
      if (!m) return pass(m);
      matrices_.push_back(std::move(*m));
    }
    const auto wide = static_cast<std::size_t>(kPaddedRows) * 4 * kWidth;
    corrections_.resize(kWidth);
    const std::pair<base::Buffer*, std::size_t> buffers[] = {
        {&x_, wide * sizeof(float)},
        {&rounded_, wide * sizeof(float)},
        {&y_keep_, wide * sizeof(float)},
        {&y_break_, wide * sizeof(float)},
        {&scratch_, kernels::quantized_bytes(DType::int4, kPaddedRows, 4 * kWidth)}};
    for (const auto& [buffer, bytes] : buffers) {
      auto allocated = base::Buffer::allocate(bytes);
      if (!allocated) return pass(allocated);
      *buffer = std::move(*allocated);
      buffer->prefer_huge_pages();
      std::fill_n(buffer->data(), bytes, std::byte{0});
    }
    fill({x_.as<float>(), wide}, 99, 1.0F);
    q_.resize(wide);
    q_scales_.resize(wide / 32 + 16);
    q_sums_.resize(q_scales_.size());
    return {};
  }

  std::size_t count(int rows) const { return rows == 1 ? matrices_.size() : std::size_t{kPrefillLayers} * 4; }

  void keep(const Matrix& m, int rows) {
    const kernels::Matmul<float> op{x_.as<float>(),
                                    static_cast<std::size_t>(m.keep.in()),
                                    &m.keep,
                                    nullptr,
                                    y_keep_.as<float>(),
                                    stride(m, rows),
                                    {}};
    kernels::run_matmul(on_, op, rows, scratch_.data());
  }

  void break_it(const Matrix& m, int rows) {
    const int in = m.keep.in();
    const auto quantized = quantize(m, rows);
    if (rows == 1) {
      OneRow op{&m.rows, x_.as<float>(), quantized, corrections_.data(), y_break_.as<float>()};
      if (quantized.q != nullptr) correct(op, corrections_.data());
      const auto parts = static_cast<std::size_t>((m.keep.out() + kRowPart - 1) / kRowPart);
      pool_.run(parts, [&](std::size_t i) {
        const int begin = static_cast<int>(i) * kRowPart;
        multiply_row(op, {begin, std::min(begin + kRowPart, m.keep.out())});
      });
      return;
    }
    const bool pairs = type_ == DType::bf16;
    if (pairs) {
      pool_.run(static_cast<std::size_t>(kRows), [&](std::size_t i) {
        const int r = static_cast<int>(i);
        round_rows(x_.as<float>(), in, {r, r + 1}, rounded_.as<float>());
      });
    }
    const ManyRows op{&m.keep,
                      m.pairs.data(),
                      (pairs ? rounded_ : x_).as<float>(),
                      static_cast<std::size_t>(pairs ? in / 2 : in),
                      quantized,
                      kPaddedRows,
                      y_break_.as<float>(),
                      stride(m, rows)};
    pool_.run(static_cast<std::size_t>(m.keep.panels()),
              [&](std::size_t p) { multiply_rows(op, static_cast<int>(p)); });
  }

  // The largest difference between the two, relative to the largest result.
  double difference(const Matrix& m, int rows) {
    keep(m, rows);
    break_it(m, rows);
    double most = 0, largest = 0;
    for (int r = 0; r < rows; ++r) {
      for (int n = 0; n < m.keep.out(); ++n) {
        const std::size_t at = static_cast<std::size_t>(r) * stride(m, rows) + static_cast<std::size_t>(n);
        most = std::max(most, std::abs(static_cast<double>(y_keep_.as<float>()[at]) -
                                       static_cast<double>(y_break_.as<float>()[at])));
        largest = std::max(largest, std::abs(static_cast<double>(y_keep_.as<float>()[at])));
      }
    }
    return most / largest;
  }

  // Milliseconds of one pass over all matrices.
  template <class Way>
  double time(int rows, const Way& way) {
    const double start = now();
    for (std::size_t i = 0; i < count(rows); ++i) way(matrices_[i]);
    return (now() - start) * 1e3;
  }

  // What bounds a pass, now, in milliseconds: the weights' bytes, or the operations.
  double bound(int rows) {
    double bytes = 0, operations = 0, seconds = 0;
    for (std::size_t i = 0; i < count(rows); ++i) {
      const Packed& w = matrices_[i].keep;
      operations += 2.0 * rows * w.in() * w.out();
      if (rows > 1) continue;
      const std::span<const std::byte> memory(matrices_[i].rows.weights.data(), matrices_[i].rows.weights.size());
      if (memory.size() < (std::size_t{1} << 22)) continue;
      bytes += static_cast<double>(memory.size());
      seconds += static_cast<double>(memory.size()) / (read_gb_s(pool_, memory) * 1e9);
    }
    if (rows == 1) return seconds / bytes * weight_bytes() * 1e3;
    const Peaks p = peaks(pool_);
    const double peak = type_ == DType::int8   ? p.int8_by_64
                        : type_ == DType::int4 ? p.int8_by_32
                        : type_ == DType::bf16 ? p.bf16
                                               : p.f32;
    raw_ms_ = operations / (kernels::group_size(type_) > 1 ? p.int8 : p.f32) / 1e6;
    return operations / peak / 1e6;
  }
  double raw_ms() const { return raw_ms_; }

  double weight_bytes() const {
    double bytes = 0;
    for (const Matrix& m : matrices_) bytes += static_cast<double>(m.rows.weights.size() + m.rows.scales.size());
    return bytes;
  }
  const std::vector<Matrix>& matrices() const { return matrices_; }

 private:
  static std::size_t stride(const Matrix& m, int rows) {
    return rows == 1 ? static_cast<std::size_t>(kVocab + 64) : static_cast<std::size_t>(m.keep.out());
  }

  kernels::QuantizedRows quantize(const Matrix& m, int rows) {
    const int group = kernels::group_size(type_);
    if (group == 1) return {};
    const kernels::QuantizedRows to{q_.data(), q_scales_.data(), q_sums_.data(), m.keep.groups(), group};
    const kernels::Quantize op{x_.as<float>(), static_cast<std::size_t>(m.keep.in()), m.keep.in(), to};
    pool_.run(static_cast<std::size_t>((rows + 3) / 4), [&](std::size_t i) {
      const int begin = static_cast<int>(i) * 4;
      on_.target->f32->quantize(op, {begin, std::min(begin + 4, rows)});
    });
    return to;
  }

  DType type_;
  base::ThreadPool pool_;
  kernels::Compute on_;
  std::vector<Matrix> matrices_;
  std::vector<float> q_scales_;
  std::vector<std::int8_t> q_;
  std::vector<std::int32_t> q_sums_, corrections_;
  base::Buffer x_, rounded_, y_keep_, y_break_, scratch_;
  double raw_ms_ = 0;
};

struct Row {
  std::string name;
  double keep = 0, broken = 0, bound = 0, raw = 0, price = 0, difference = 0;  // medians
  double best_keep = 0, best_broken = 0, best_bound = 0;                       // the fastest of the rounds
};

Result<Row> measure(Bench& bench, DType type, int rows, int rounds) {
  Row row;
  row.name = fmt::format("{} {}", rows == 1 ? "decode" : "prefill", name_of(type));
  // bf16 products of rounded activations are another number, not another order.
  const double tolerance = type == DType::bf16 ? 1e-2 : 1e-5;
  for (std::size_t i = 0; i < bench.count(rows); ++i) {
    row.difference = std::max(row.difference, bench.difference(bench.matrices()[i], rows));
  }
  if (!(row.difference < tolerance)) {
    return fail(Code::corrupt,
                fmt::format("{}: the two kernels differ by {:.1e} of the largest result, so they are not "
                            "timed",
                            row.name, row.difference));
  }
  std::vector<double> keep, broken, bound, raw, ratio;
  for (int i = 0; i < rounds; ++i) {
    bound.push_back(bench.bound(rows));
    raw.push_back(bench.raw_ms());
    keep.push_back(bench.time(rows, [&](const Matrix& m) { bench.keep(m, rows); }));
    broken.push_back(bench.time(rows, [&](const Matrix& m) { bench.break_it(m, rows); }));
    ratio.push_back(keep.back() / broken.back());
  }
  row.keep = median(keep);
  row.broken = median(broken);
  row.bound = median(bound);
  row.raw = median(raw);
  row.price = median(ratio) - 1;
  row.best_keep = *std::min_element(keep.begin(), keep.end());
  row.best_broken = *std::min_element(broken.begin(), broken.end());
  row.best_bound = *std::min_element(bound.begin(), bound.end());
  return row;
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
    int number = 0;
    const auto [end, wrong] = std::from_chars(value.data(), value.data() + value.size(), number);
    const bool ok = wrong == std::errc{} && end == value.data() + value.size() && number >= 1 && number <= 1000;
    if (name == "--only") {
      s.only = value;
    } else if (name == "--threads" && ok) {
      s.threads = number;
    } else if (name == "--rounds" && ok) {
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
    std::cerr << "usage: price_of_exactness [--threads N] [--rounds N] [--only f32|f16|bf16|int8|int4] [--cpu-time] "
                 "[--json]\n";
    return 2;
  }
  if (setup->cpu_time) {
    setup->threads = 1;
    count_cpu_time();
  }
  if (!can_break()) {
    std::cerr << "price_of_exactness: its kernels need a CPU and a build with AVX-512, VNNI and BF16\n";
    return 1;
  }
  nlohmann::json rows = nlohmann::json::array();
  if (!setup->json) {
    std::cout << fmt::format("{} threads, {} rounds, kernels {}{}\n\n", setup->threads, setup->rounds,
                             kernels::targets().front().name, setup->cpu_time ? ", CPU time" : "")
              << "| work | exact ms | any order ms | price | exact, of its bound | any order, of its bound | fastest "
                 "exact ms | "
                 "fastest any order ms | fastest bound ms |\n"
              << "|---|---|---|---|---|---|---|---|---|\n";
  }
  for (const DType type : {DType::f32, DType::f16, DType::int8, DType::int4, DType::bf16}) {
    if (!setup->only.empty() && setup->only != name_of(type)) continue;
    Bench bench(type, *setup);
    if (auto ok = bench.prepare(); !ok) {
      std::cerr << "price_of_exactness: " << ok.error().message << '\n';
      return 1;
    }
    for (const int n : {1, kRows}) {
      if (n == 1 && type == DType::bf16) continue;  // one row is bound by the weights' bytes, whatever multiplies them
      const auto row = measure(bench, type, n, setup->rounds);
      if (!row) {
        std::cerr << "price_of_exactness: " << row.error().message << '\n';
        return 1;
      }
      // The exact bf16 kernel multiplies as f32 does.
      const double keep_bound = type == DType::bf16 ? row->raw : row->bound;
      rows.push_back({{"work", row->name},
                      {"exact_ms", row->keep},
                      {"any_order_ms", row->broken},
                      {"price", row->price},
                      {"exact_of_bound", keep_bound / row->keep},
                      {"any_order_of_bound", row->bound / row->broken},
                      {"fastest_exact_ms", row->best_keep},
                      {"fastest_any_order_ms", row->best_broken},
                      {"fastest_bound_ms", row->best_bound},
                      {"difference", row->difference}});
      if (n > 1 && kernels::group_size(type) > 1) {
        rows.back()["exact_of_dot_products"] = row->raw / row->keep;
        rows.back()["any_order_of_dot_products"] = row->raw / row->broken;
      }
      if (!setup->json) {
        std::cout << fmt::format(
                         "| {} | {:.2f} | {:.2f} | {:+.1f} % | {:.1f} % | {:.1f} % | {:.2f} | {:.2f} | {:.2f} |\n",
                         row->name, row->keep, row->broken, row->price * 100, keep_bound / row->keep * 100,
                         row->bound / row->broken * 100, row->best_keep, row->best_broken, row->best_bound)
                  << std::flush;
      }
    }
  }
  if (setup->json) {
    std::cout << nlohmann::json{{"threads", setup->threads}, {"rounds", setup->rounds}, {"rows", rows}} << '\n';
  }
  return 0;
}

}  // namespace
}  // namespace stet::bench

int main(int argc, char** argv) {
  return stet::bench::run({argv + 1, argv + argc});
}
