// A model that stays loaded and times one step loop at a time, so that another engine can take turns with it:
//
//   stet_step -m MODEL [--dtype f32] [--threads 2] [--context N] [--seqs N] [--chunk N]
//
// reads commands from stdin, one a line, and answers each with one JSON object on a line:
//   pp N                       one step of N tokens into an empty sequence, logits of the last       {"ms": ...}
//   tg N [depth D]             N steps of one token behind D, logits of each                          {"ms": ...}
//   batch B tg N [depth D]     N steps of one token for each of B sequences behind D, logits of all   {"ms": ...}
//   each N [depth D]           as tg, the time of each step                                           {"ms": [...]}
//   logits ID ID ...           logits of the last of these tokens                                     {"logits": [...]}
//   probe [BYTES]              what the machine gives now: reads over BYTES (default: the weights')   {"read_gb_s":
//   ...} memory                     what the process holds and held at most                                {"vm_hwm":
//   ...} quit
// A command that cannot be is answered with {"error": ...}. Sampling is not part of a step: the ids are made up.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "engine/loaded.hpp"
#include "measure.hpp"
#include "stet/version.hpp"

namespace stet::bench {
namespace {

using Json = nlohmann::json;

struct Options {
  std::string model;
  DType dtype = DType::f32;
  int threads = 2, seqs = 1, chunk = 512;
  Pos context = 0;
};

std::optional<std::int64_t> number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (wrong != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

Result<Options> parse(std::span<char* const> args) {
  Options o;
  for (std::size_t i = 0; i < args.size(); i += 2) {
    const std::string name = args[i];
    if (i + 1 == args.size()) return fail(Code::invalid_argument, fmt::format("{}: needs a value", name));
    const std::string value = args[i + 1];
    if (name == "-m") {
      o.model = value;
      continue;
    }
    if (name == "--dtype") {
      constexpr DType kTypes[] = {DType::f64, DType::f32, DType::f16, DType::bf16, DType::int8, DType::int4};
      const auto* type =
          std::find_if(std::begin(kTypes), std::end(kTypes), [&](DType t) { return name_of(t) == value; });
      if (type == std::end(kTypes)) return fail(Code::invalid_argument, fmt::format("--dtype {}: no such type", value));
      o.dtype = *type;
      continue;
    }
    const auto n = number(value);
    if (!n || *n < 1 || *n > 1'000'000) {
      return fail(Code::invalid_argument, fmt::format("{} {}: must be an integer from 1 to 1000000", name, value));
    }
    if (name == "--threads") {
      o.threads = static_cast<int>(std::min<std::int64_t>(*n, 1024));
    } else if (name == "--seqs") {
      o.seqs = static_cast<int>(*n);
    } else if (name == "--chunk") {
      o.chunk = static_cast<int>(*n);
    } else if (name == "--context") {
      o.context = *n;
    } else {
      return fail(Code::invalid_argument,
                  fmt::format("{}: unknown (-m, --dtype, --threads, --context, --seqs, --chunk)", name));
    }
  }
  if (o.model.empty()) return fail(Code::invalid_argument, "-m MODEL is missing");
  return o;
}

// "VmHWM" and the like of this process, in bytes.
std::size_t status_bytes(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key + ":")) return std::stoull(line.substr(key.size() + 1)) * 1024;
  }
  return 0;
}

class Stepper {
 public:
  static Result<Stepper> make(const Options& o) {
    Stepper s;
    const double start = now();
    auto loaded = engine::load(o.model, o.dtype);
    if (!loaded) return pass(loaded);
    s.load_ms_ = (now() - start) * 1e3;
    s.model_ = std::move(loaded->model);
    const Pos context = s.model_->config().context;
    CacheOptions options;
    options.max_len = o.context == 0 ? context : std::min(o.context, context);
    options.max_seqs = o.seqs;
    auto cache = make_cache(s.model_->cache_spec(), options);
    if (!cache) return pass(cache);
    s.cache_ = std::move(*cache);
    s.rows_ = static_cast<int>(std::min<Pos>(options.max_len, std::max(o.chunk, o.seqs)));
    auto workspace = base::Buffer::allocate(s.model_->workspace_bytes(s.rows_));
    if (!workspace) return pass(workspace);
    s.workspace_ = std::move(*workspace);
    s.pool_ = std::make_unique<base::ThreadPool>(o.threads);
    for (int i = 0; i < o.seqs; ++i) {
      auto seq = s.cache_->open();
      if (!seq) return pass(seq);
      s.seqs_.push_back(*seq);
    }
    s.logits_.resize(static_cast<std::size_t>(o.seqs) * s.row_bytes());
    return s;
  }

  Json hello(const Options& o) const {
    return {{"version", version().version},
            {"compiler", version().compiler},
            {"kernels", kernels::targets().front().name},
            {"threads", o.threads},
            {"dtype", name_of(o.dtype)},
            {"vocab", model_->config().vocab},
            {"weight_bytes", model_->weight_bytes()},
            {"load_ms", load_ms_}};
  }

  Result<Json> answer(const std::string& line) {
    std::istringstream in(line);
    std::vector<std::string> words{std::istream_iterator<std::string>(in), {}};
    const std::string& verb = words[0];
    if (verb == "memory") return Json{{"vm_hwm", status_bytes("VmHWM")}, {"vm_rss", status_bytes("VmRSS")}};
    std::vector<std::int64_t> numbers;
    std::map<std::string, std::int64_t> named;
    for (std::size_t i = 0; i < words.size(); ++i) {
      const auto value = number(words[i]);
      if (!value) continue;
      numbers.push_back(*value);
      if (i > 0) named[words[i - 1]] = *value;
    }
    if (verb == "logits") return logits(numbers);
    if (verb == "probe") return probe(numbers.empty() ? model_->weight_bytes() : static_cast<std::size_t>(numbers[0]));
    if (verb == "pp" && named.contains("pp")) return prefill(named["pp"]);
    const std::string count = verb == "each" ? "each" : "tg";
    if ((verb == "tg" || verb == "batch" || verb == "each") && named.contains(count)) {
      return decode(named.contains("batch") ? named["batch"] : 1, named[count], named["depth"], verb == "each");
    }
    return fail(Code::invalid_argument, fmt::format("{}: no such command", line));
  }

 private:
  std::size_t row_bytes() const { return static_cast<std::size_t>(model_->config().vocab) * size_of(model_->dtype()); }
  TokenId made_up(Pos at, std::size_t seq) const {
    return static_cast<TokenId>((at * 7919 + static_cast<Pos>(seq) * 104729 + 13) % model_->config().vocab);
  }

  // One step of `tokens` for each of the first `seqs` sequences, which all hold `at`; logits of the last of each.
  Result<void> step(std::size_t seqs, Pos at, int tokens, const std::vector<TokenId>* given = nullptr) {
    std::vector<Append> appends;
    std::vector<TokenId> ids;
    std::vector<int> wanted;
    for (std::size_t s = 0; s < seqs; ++s) {
      appends.push_back({seqs_[s], tokens});
      for (int t = 0; t < tokens; ++t) {
        ids.push_back(given != nullptr ? (*given)[static_cast<std::size_t>(at + t)] : made_up(at + t, s));
      }
      wanted.push_back(static_cast<int>(ids.size()) - 1);
    }
    auto step = cache_->begin(appends);
    if (!step) return pass(step);
    const kernels::Compute compute{pool_.get(), &kernels::targets().front()};
    if (auto ok = model_->forward(compute, **step, ids, {wanted, logits_.data()}, workspace_); !ok) return ok;
    (*step)->commit();
    return {};
  }

  // Makes the first `seqs` sequences hold exactly `depth` made-up tokens; what they hold already is kept.
  Result<void> fill(std::size_t seqs, Pos depth) {
    for (std::size_t s = 0; s < seqs; ++s) {
      auto length = cache_->length(seqs_[s]);
      if (!length) return pass(length);
      if (*length > depth || given_) {
        if (auto ok = cache_->truncate(seqs_[s], given_ ? 0 : depth); !ok) return ok;
      }
    }
    given_ = false;
    for (std::size_t s = 0; s < seqs; ++s) {
      auto length = cache_->length(seqs_[s]);
      while (*length < depth) {
        std::swap(seqs_[0], seqs_[s]);  // step() takes the first ones
        const int some = static_cast<int>(std::min<Pos>(rows_, depth - *length));
        auto ok = step(1, *length, some);
        std::swap(seqs_[0], seqs_[s]);
        if (!ok) return ok;
        *length += some;
      }
    }
    return {};
  }

  Result<Json> prefill(std::int64_t n) {
    if (n < 1 || n > rows_) return fail(Code::invalid_argument, fmt::format("pp {}: must be 1 to {}", n, rows_));
    if (auto ok = fill(1, 0); !ok) return pass(ok);
    const double start = now();
    if (auto ok = step(1, 0, static_cast<int>(n)); !ok) return pass(ok);
    return Json{{"ms", (now() - start) * 1e3}};
  }

  Result<Json> decode(std::int64_t batch, std::int64_t n, Pos depth, bool each) {
    if (batch < 1 || batch > static_cast<std::int64_t>(seqs_.size()) || n < 1 || depth < 0) {
      return fail(Code::invalid_argument, fmt::format("a batch of {}: must be 1 to {}", batch, seqs_.size()));
    }
    const auto seqs = static_cast<std::size_t>(batch);
    if (auto ok = fill(seqs, depth); !ok) return pass(ok);
    std::vector<double> times;
    const double start = now();
    double last = start;
    for (std::int64_t i = 0; i < n; ++i) {
      if (auto ok = step(seqs, depth + i, 1); !ok) return pass(ok);
      const double t = now();
      times.push_back((t - last) * 1e3);
      last = t;
    }
    return each ? Json{{"ms", times}} : Json{{"ms", (last - start) * 1e3}};
  }

  Result<Json> logits(const std::vector<std::int64_t>& numbers) {
    const std::vector<TokenId> ids(numbers.begin(), numbers.end());
    if (ids.empty() || static_cast<int>(ids.size()) > rows_) {
      return fail(Code::invalid_argument, fmt::format("logits of {} tokens: must be 1 to {}", ids.size(), rows_));
    }
    if (auto ok = fill(1, 0); !ok) return pass(ok);
    given_ = true;
    if (auto ok = step(1, 0, static_cast<int>(ids.size()), &ids); !ok) return pass(ok);
    const auto vocab = static_cast<std::size_t>(model_->config().vocab);
    Json out = Json::array();
    for (std::size_t i = 0; i < vocab; ++i) {
      out.push_back(model_->dtype() == DType::f64 ? reinterpret_cast<const double*>(logits_.data())[i]
                                                  : reinterpret_cast<const float*>(logits_.data())[i]);
    }
    return Json{{"logits", std::move(out)}};
  }

  Result<Json> probe(std::size_t bytes) {
    if (bytes < (std::size_t{1} << 20) || bytes > (std::size_t{1} << 32)) {
      return fail(Code::invalid_argument, fmt::format("probe {}: must be 2^20 to 2^32 bytes", bytes));
    }
    if (probed_.size() != bytes) {
      auto buffer = base::Buffer::allocate(bytes);
      if (!buffer) return pass(buffer);
      probed_ = std::move(*buffer);
      probed_.prefer_huge_pages();  // as the weights have them
      std::fill_n(probed_.as<unsigned char>(), bytes, static_cast<unsigned char>(1));
    }
    const Peaks p = peaks(*pool_);
    return Json{{"read_gb_s", read_gb_s(*pool_, {probed_.data(), probed_.size()})},
                {"f32_gflop_s", p.f32},
                {"f64_gflop_s", p.f64},
                {"int8_gop_s", p.int8},
                {"int8_by_64_gop_s", p.int8_by_64},
                {"int8_by_32_gop_s", p.int8_by_32},
                {"bf16_gflop_s", p.bf16}};
  }

  std::unique_ptr<model::Model> model_;
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<base::ThreadPool> pool_;
  base::Buffer workspace_, probed_;
  std::vector<Seq> seqs_;
  std::vector<std::byte> logits_;
  int rows_ = 0;        // most of a step: a longer prompt takes several
  bool given_ = false;  // the first sequence holds ids of the caller's
  double load_ms_ = 0;
};

int serve(std::span<char* const> args) {
  const auto options = parse(args);
  if (!options) {
    std::cerr << "stet_step: " << options.error().message << '\n';
    return 2;
  }
  auto stepper = Stepper::make(*options);
  if (!stepper) {
    std::cerr << "stet_step: " << stepper.error().message << '\n';
    return 1;
  }
  std::cout << stepper->hello(*options) << std::endl;
  for (std::string line; std::getline(std::cin, line) && line != "quit";) {
    if (line.find_first_not_of(" \t") == line.npos) continue;
    const auto answer = stepper->answer(line);
    std::cout << (answer ? *answer : Json{{"error", answer.error().message}}) << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace stet::bench

int main(int argc, char** argv) {
  std::ios::sync_with_stdio(false);
  return stet::bench::serve({argv + 1, argv + argc});
}
