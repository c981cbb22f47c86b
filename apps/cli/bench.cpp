#include "lab/bench.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "base/thread_pool.hpp"
#include "commands.hpp"
#include "console.hpp"
#include "interrupt.hpp"
#include "json.hpp"
#include "lab/bench_report.hpp"
#include "machine.hpp"
#include "report_folder.hpp"
#include "session.hpp"
#include "stet/version.hpp"

namespace stet::cli {
namespace {

constexpr const char* kExample =
    "Examples:\n"
    "  stet bench\n"
    "  stet bench --dtype f32,bf16,int8 --threads 2 --csv > bench.csv\n"
    "  stet bench -m gpt2/ --tests tg64 --depth 0,512,max --batch 1,8 -r 3 --report out\n"
    "  stet bench -m random:gpt2,ctx=8192 --tests tg32 --depth max --batch 1 --kv f32 --kv int8 --cache paged\n\n"
    "ppN reads a prompt of N tokens in one step, tgN decodes N tokens one step at a time, in sequences that already\n"
    "hold --depth tokens; --batch sequences decode together. A row stands beside its bound: the time that this\n"
    "machine, measured before and after the row, needs to read the row's bytes or to compute its operations.\n"
    "Exit 1 if a row beats 103 % of its bound, or a kernel its peak loop: then the bounds are wrong.";

struct BenchFlags {
  lab::BenchOptions options;
  EngineOptions engine;  // of which only what the cache is
  bool json = false, csv = false;
  ReportFlag report;
};

double gb_s(const lab::BenchRow& row) {
  return row.work.bytes() / row.ms / 1e6;
}

double gflop_s(const lab::BenchRow& row) {
  return row.work.operations() / row.ms / 1e6;
}

/// Rounded as far as a stop-watch can be trusted, so that JSON and CSV stay readable.
double rounded(double value) {
  return std::stod(fmt::format("{:.6g}", value));
}

Json row_json(const lab::BenchRow& row) {
  return {{"test", lab::name_of(row.at.test)},
          {"dtype", name_of(row.dtype)},
          {"depth", row.at.depth},
          {"batch", row.at.batch},
          {"threads", row.threads},
          {"tok_s", rounded(row.tok_s())},
          {"ms", rounded(row.ms)},
          {"bound_ms", rounded(row.bound())},
          {"of_bound", rounded(row.of_bound())},
          {"read_gb_s", rounded(row.limits.read_gb_s)},
          {"peak_gflop_s", rounded(row.limits.peak_gflop_s)},
          {"gb_s", rounded(gb_s(row))},
          {"gflop_s", rounded(gflop_s(row))},
          {"bytes", row.work.bytes()},
          {"operations", row.work.operations()},
          {"kv", row.kv}};
}

std::string csv_line(const Json& row, bool names) {
  std::string line;
  for (const auto& [name, value] : row.items()) {
    line += fmt::format("{}{}", line.empty() ? "" : ",",
                        names               ? name
                        : value.is_string() ? value.get<std::string>()
                                            : dump(value));
  }
  return line + '\n';
}

/// "contiguous", "paged (16), window 256 + 4"
std::string cache_words(const lab::BenchOptions& o) {
  std::string words = name_of(o.cache);
  if (o.cache == CacheMode::paged) words += fmt::format(" ({})", o.page_tokens);
  if (o.span) words += fmt::format(", window {} + {}", o.span->window, o.span->sinks);
  return words;
}

std::string header(const lab::BenchOptions& options) {
  std::string types;
  for (const DType dtype : options.dtypes) types += fmt::format("{}{}", types.empty() ? "" : ",", name_of(dtype));
  return printable(fmt::format("{}, {}, {} thread{}, {} in {}, {} cache, seed {}", cpu_name(), version().target,
                               options.threads, options.threads == 1 ? "" : "s", options.model, types,
                               cache_words(options), options.seed)) +
         fmt::format("\n{:<7} {:<5} {:<9} {:>6} {:>6} {:>10} {:>10} {:>10} {:>6} {:>8} {:>8} {:>9} {:>9}\n", "test",
                     "dtype", "cache", "depth", "batch", "tok/s", "ms", "bound ms", "of it", "GB/s", "read", "GFLOP/s",
                     "peak");
}

std::string table_line(const lab::BenchRow& row) {
  return fmt::format(
      "{:<7} {:<5} {:<9} {:>6} {:>6} {:>10.1f} {:>10.3f} {:>10.3f} {:>5.1f}% {:>8.2f} {:>8.2f} {:>9.1f} {:>9.1f}\n",
      lab::name_of(row.at.test), name_of(row.dtype), row.kv, row.at.depth, row.at.batch, row.tok_s(), row.ms,
      row.bound(), row.of_bound() * 100, gb_s(row), row.limits.read_gb_s, gflop_s(row), row.limits.peak_gflop_s);
}

Json report_json(const lab::BenchOptions& options, const lab::BenchReport& report, bool ended) {
  double read = 0, peak = 0;
  Json json;
  json["schema"] = kSchema;
  json["machine"] = {{"cpu", cpu_name()}, {"target", version().target}};
  json["model"] = options.model;
  json["threads"] = options.threads;
  json["cache"] = {{"mode", name_of(options.cache)}, {"page", nullptr}, {"window", nullptr}, {"sinks", nullptr}};
  if (options.cache == CacheMode::paged) json["cache"]["page"] = options.page_tokens;
  if (options.span) {
    json["cache"]["window"] = options.span->window;
    json["cache"]["sinks"] = options.span->sinks;
  }
  json["seed"] = options.seed;
  json["repeats"] = options.repeats;
  json["interrupted"] = !ended;
  json["read_gb_s"] = nullptr;
  json["peak_gflop_s"] = nullptr;
  json["rows"] = Json::array();
  for (const auto& row : report.rows) {
    read = std::max(read, row.limits.read_gb_s);
    peak = std::max(peak, row.limits.peak_gflop_s);
    json["rows"].push_back(row_json(row));
  }
  if (read > 0) json["read_gb_s"] = rounded(read);
  if (peak > 0) json["peak_gflop_s"] = rounded(peak);
  json["peaks"] = Json::array();
  for (const auto& p : report.peaks) {
    json["peaks"].push_back({{"dtype", name_of(p.dtype)},
                             {"peak_gflop_s", rounded(p.peak_gflop_s)},
                             {"matmul_gflop_s", rounded(p.kernel_gflop_s)}});
  }
  json["faults"] = lab::bench_faults(report);
  return json;
}

int bench(const BenchFlags& flags) {
  const auto folder = ReportFolder::open(flags.report);
  if (!folder) return cli::report(folder.error());
  Output out(STDOUT_FILENO);
  Progress progress("bench");
  lab::BenchReport report;
  lab::BenchCallbacks callbacks;
  bool begun = false;
  callbacks.on_progress = [&](std::string_view what) { progress.show(what); };
  callbacks.keep_going = [&] { return !interrupted() && !out.closed() && out.state(); };
  callbacks.on_row = [&](const lab::BenchRow& row) {
    progress.clear();
    if (flags.json) return;
    if (!begun) out.write(flags.csv ? csv_line(row_json(row), true) : header(flags.options));
    begun = true;
    out.write(flags.csv ? csv_line(row_json(row), false) : table_line(row));
  };
  const auto done = lab::bench(flags.options, callbacks, report);
  progress.clear();
  const bool stopped = !done && done.error().code == Code::interrupted;
  if (flags.json && (done || (stopped && interrupted()))) {
    out.write(dump(report_json(flags.options, report, done.has_value())) + '\n');
  }
  if (!out.state()) return cli::report(out.state().error());
  if (!done) return stopped && !interrupted() ? kFailure : cli::report(done.error());
  const auto faults = lab::bench_faults(report);
  for (const auto& fault : faults) say(fault);
  if (folder->wanted()) {
    auto page = lab::report_of(flags.options, report);
    page.json = dump(report_json(flags.options, report, true));
    const int code = folder->write(std::move(page), flags.options.model, flags.options.seed);
    if (code != kOk) return code;
  }
  return faults.empty() ? kOk : kFailure;
}

std::optional<lab::BenchTest> parse_test(std::string_view text) {
  lab::BenchTest test;
  if (text.starts_with("tg")) {
    test.kind = lab::BenchTest::Kind::decode;
  } else if (!text.starts_with("pp")) {
    return std::nullopt;
  }
  if (!parse_number(text.substr(2), test.tokens) || test.tokens < 1) return std::nullopt;
  return test;
}

std::optional<DType> parse_dtype(std::string_view text) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::int8, DType::int4}) {
    if (text == name_of(dtype)) return dtype;
  }
  return std::nullopt;
}

void add_lists(CLI::App& app, lab::BenchOptions& o) {
  add_list(
      app, "--dtype", "types of f32, f64, bf16, f16, int8, int4 and commas",
      "Types of the weights, one after the other (default: f32)", [&o] { o.dtypes.clear(); },
      [&o](std::string_view text) {
        const auto dtype = parse_dtype(text);
        if (dtype) o.dtypes.push_back(*dtype);
        return dtype.has_value();
      });
  add_list(
      app, "--tests", "tests like pp512 or tg128 and commas",
      "ppN: prefill of N tokens; tgN: decode of N; shortened to the context (default: pp512,pp16,tg128)",
      [&o] { o.tests.clear(); },
      [&o](std::string_view text) {
        const auto test = parse_test(text);
        if (test) o.tests.push_back(*test);
        return test.has_value();
      });
  add_list(
      app, "--depth", "whole numbers from 0, max and commas",
      "Tokens in each sequence before the test; max: as many as leave it room (default: 0,max)",
      [&o] { o.depths.clear(); },
      [&o](std::string_view text) {
        Pos depth = lab::kNearLimit;
        if (text != "max" && (!parse_number(text, depth) || depth < 0)) return false;
        o.depths.push_back(depth);
        return true;
      });
  add_list(
      app, "--batch", "whole numbers from 1 to 1024 and commas",
      "Sequences decoded together; a prefill is of one (default: 1,4,16)", [&o] { o.batches.clear(); },
      [&o](std::string_view text) {
        int batch = 0;
        if (!parse_number(text, batch) || batch < 1 || batch > 1024) return false;
        o.batches.push_back(batch);
        return true;
      });
}

}  // namespace

void add_bench(CLI::App& app, Run& run) {
  auto flags = std::make_shared<BenchFlags>();
  lab::BenchOptions& o = flags->options;
  o.model = "random:gpt2";
  o.threads = std::min(base::available_cpus(), 1024);
  auto* sub = app.add_subcommand("bench", "Speed of prefill and decode beside what this machine could do at most");
  sub->footer(kExample);
  add_text(
      *sub, "-m,--model",
      [&o](std::string text) {
        if (text.empty()) throw CLI::ValidationError("-m", "must name a model, not ''");
        o.model = std::move(text);
      },
      "A model folder, or random weights of a shape (default: random:gpt2)")
      ->type_name("MODEL");
  add_lists(*sub, o);
  add_layout_flags(*sub, flags->engine);
  add_text(
      *sub, "--kv", [&o](const std::string& text) { o.kv.push_back(parse_kv(text)); },
      "How keys and values are stored, of f64, f32, bf16, f16, int8, int4; several times for several rows, which are "
      "measured side by side (default: the type of the arithmetic)")
      ->type_name("[LAYERS:]K[,V]")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  add_number(*sub, "--threads", o.threads, from_to(1, 1024), "Threads (default: as many as this process may run on)");
  add_number(*sub, "-r,--repeats", o.repeats, from_to(1, 1000),
             "Times that a test is repeated; the median counts (default: 5)");
  add_number<std::uint64_t>(*sub, "--seed", o.seed,
                            {"a whole number from 0 that fits 64 bits", [](std::uint64_t) { return true; }},
                            "Of the random token ids (default: 0)");
  auto* csv = sub->add_flag("--csv", flags->csv, "One line a row with commas, names first");
  sub->add_flag("--json", flags->json, "One JSON object instead of text (docs/json.md)")->excludes(csv);
  add_report_flag(*sub, flags->report, run);
  sub->callback([flags, &run] {
    lab::BenchOptions& options = flags->options;
    options.cache = flags->engine.cache;
    options.page_tokens = flags->engine.page_tokens;
    options.pool_tokens = flags->engine.pool_tokens;
    options.span = flags->engine.span;
    run = [flags] {
      catch_interrupts();
      return bench(*flags);
    };
  });
}

}  // namespace stet::cli
