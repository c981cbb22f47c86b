#include "lab/eval.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>

#include "commands.hpp"
#include "console.hpp"
#include "eval_flips.hpp"
#include "files.hpp"
#include "interrupt.hpp"
#include "json.hpp"
#include "session.hpp"

namespace stet::cli {
namespace {

constexpr const char* kExample =
    "Examples:\n"
    "  stet eval --text play.txt\n"
    "  stet eval -m gpt2/ --text book.txt --tokens 20000 --dtype int8,int4 --json\n"
    "  stet tokenize -m gpt2/ --json < book.txt > ids.json; stet eval -m gpt2/ --ids ids.json\n"
    "  stet eval --text play.txt --kv int8 --kv int8,int4 --kv 0:int4\n"
    "  stet eval --text play.txt --flips --tokens 16 --report out\n\n"
    "Reads the text with weights of each type and compares what they predict with f32: perplexity, mean KL divergence\n"
    "(nats a position), how often the most likely token is the same, largest distance of a logit. The text is cut "
    "into\n"
    "windows; of each, all tokens but the first are predicted. f32 is always run; at most two models are in memory.\n\n"
    "With --kv the weights stay as they are, and caches are compared with one that stores the type of the arithmetic.\n"
    "A cache that changes the most likely token at more than every tenth position (top-1 below 90 %) is warned "
    "about.\n\n"
    "With --flips f32 goes on from the text greedily, weights of --dtype and caches of --kv (beside f32 weights; "
    "without\n"
    "either flag f16, bf16, int8 and int4 of both) read what it made: how far their logits are from those of f32, the\n"
    "first step at which their most likely token is another one, and whether cached and recomputed bits are equal.";

struct EvalFlags {
  ModelFlags model;
  lab::EvalOptions options;
  std::string text_file, ids_file;
  bool dtypes_given = false;
  bool flips = false;
  int steps = 0;
  ReportFlag report;
  bool json = false;
};

std::vector<DType> parse_dtypes(std::string_view list) {
  std::vector<DType> dtypes;
  while (true) {
    const auto comma = std::min(list.find(','), list.size());
    const std::string_view word = list.substr(0, comma);
    const DType all[] = {DType::f64, DType::f32, DType::bf16, DType::f16, DType::int8, DType::int4};
    const auto* found = std::find_if(std::begin(all), std::end(all), [&](DType d) { return word == name_of(d); });
    if (found == std::end(all)) {
      throw CLI::ValidationError(
          "--dtype",
          fmt::format("must be types of f64, f32, bf16, f16, int8, int4 with commas between, not '{}'", word));
    }
    if (std::find(dtypes.begin(), dtypes.end(), *found) == dtypes.end()) dtypes.push_back(*found);
    if (comma == list.size()) return dtypes;
    list.remove_prefix(comma + 1);
  }
}

void add_kv(std::vector<KvCodecs>& kv, const std::string& text) {
  if (text != "all") {
    kv.push_back(parse_kv(text));
    return;
  }
  for (const char* pair : {"bf16", "f16", "int8", "int8,int4", "int4,int8", "int4"}) kv.push_back(parse_kv(pair));
}

Result<lab::EvalInput> read_eval_input(const EvalFlags& flags) {
  lab::EvalInput input;
  input.is_text = !flags.text_file.empty();
  const std::string& file = input.is_text ? flags.text_file : flags.ids_file;
  input.name = file == "-" ? "stdin" : file;
  auto content = read_input(file);
  if (!content) return pass(content);
  if (content->find_first_not_of(input.is_text ? "" : " \t\r\n") == content->npos) {
    return fail(Code::invalid_argument, fmt::format("{} is empty", input.name));
  }
  if (input.is_text) {
    input.text = std::move(*content);
    return input;
  }
  auto ids = parse_ids(*content);
  if (!ids) return fail(ids.error().code, fmt::format("{}: {}", input.name, ids.error().message));
  input.ids = std::move(*ids);
  return input;
}

Json report_json(const lab::EvalReport& report, const EvalFlags& flags) {
  Json json;
  json["schema"] = kSchema;
  json["model"] = flags.options.model;
  json["tokens"] = report.tokens;
  json["window"] = report.window;
  json["scored"] = report.scored;
  json["rows"] = Json::array();
  for (const auto& row : report.rows) {
    json["rows"].push_back({{"dtype", name_of(row.dtype)},
                            {"kv", row.kv},
                            {"perplexity", row.perplexity},
                            {"nll", row.nll},
                            {"kl", row.kl},
                            {"top1", row.top1},
                            {"max_logit_distance", row.max_logit_distance},
                            {"max_logit_relative", row.max_logit_relative},
                            {"weight_bytes", row.weight_bytes},
                            {"cache_bytes_per_token", row.cache_bytes_per_token},
                            {"poor", row.poor()}});
  }
  return json;
}

std::string report_text(const lab::EvalReport& report, const EvalFlags& flags) {
  const bool caches = !flags.options.kv.empty();
  std::string text =
      printable(fmt::format(
          "{}: {} tokens in windows of {}, {} predicted{}", flags.options.model, report.tokens, report.window,
          report.scored, caches ? fmt::format(", weights in {}", name_of(report.rows.front().dtype)) : std::string())) +
      '\n';
  const int width = caches ? 10 : 5;
  text += fmt::format("{:<{}} {:>11} {:>9} {:>11} {:>8} {:>15} {:>9} {:>14}\n", caches ? "cache" : "type", width,
                      "perplexity", "nll", fmt::format("KL to {}", caches ? report.rows.front().kv : "f32"), "top-1",
                      "logit distance", "relative", caches ? "bytes a token" : "weight bytes");
  for (const auto& row : report.rows) {
    text += fmt::format("{:<{}} {:>11.5f} {:>9.5f} {:>11.3e} {:>6.2f} % {:>15.3e} {:>9.1e} {:>14}\n",
                        caches ? row.kv : name_of(row.dtype), width, row.perplexity, row.nll, row.kl, row.top1 * 100,
                        row.max_logit_distance, row.max_logit_relative,
                        caches ? row.cache_bytes_per_token : row.weight_bytes);
  }
  return text;
}

void warn_of_poor(const lab::EvalReport& report) {
  for (const auto& row : report.rows) {
    if (!row.poor()) continue;
    say(
        fmt::format("warning: with --kv {} the most likely token is that of a cache in {} at only {:.1f} % of the "
                    "positions (poor: below {:.0f} %)",
                    row.kv, report.rows.front().kv, row.top1 * 100, kPoorTop1 * 100));
  }
}

int run_flips(const EvalFlags& flags, const lab::EvalInput& input) {
  lab::FlipOptions options;
  options.model = flags.options.model;
  options.threads = flags.options.threads;
  options.prompt = flags.options.tokens;
  options.steps = flags.steps;
  if (flags.dtypes_given || !flags.options.kv.empty()) {
    options.dtypes = flags.dtypes_given ? flags.options.dtypes : std::vector<DType>();
    options.kv = flags.options.kv;
  }
  return show_flips(options, input, flags.json, flags.report);
}

int run_eval(EvalFlags flags) {
  catch_interrupts();
  flags.options.model = model_of(flags.model);
  flags.options.threads = flags.model.engine.threads;
  const auto input = read_eval_input(flags);
  if (!input) return report(input.error());
  if (flags.flips) return run_flips(flags, *input);
  Progress progress("eval");
  lab::EvalCallbacks callbacks;
  callbacks.on_progress = [&](std::string_view what) { progress.show(what); };
  callbacks.keep_going = [] { return !interrupted(); };
  const auto result = lab::evaluate(flags.options, *input, callbacks);
  progress.clear();
  if (!result) return report(result.error());
  Output out(STDOUT_FILENO);
  out.write(flags.json ? dump(report_json(*result, flags)) + '\n' : report_text(*result, flags));
  if (!flags.options.kv.empty()) warn_of_poor(*result);
  return out.state() ? kOk : report(out.state().error());
}

}  // namespace

void add_eval(CLI::App& app, Run& run) {
  auto flags = std::make_shared<EvalFlags>();
  flags->model.engine.threads = 0;
  auto* sub = app.add_subcommand("eval", "What each weight type, or each codec of the cache, costs in quality");
  sub->footer(kExample);
  add_model_flag(*sub, flags->model);
  const auto file_flag = [&](const std::string& name, std::string& target, const std::string& help) {
    auto set = [&target, name](std::string file) {
      if (file.empty()) throw CLI::ValidationError(name, "must name a file, not ''");
      target = std::move(file);
    };
    return add_text(*sub, name, set, help)->type_name("FILE");
  };
  auto* text = file_flag("--text", flags->text_file, "The text, byte for byte; - is stdin");
  auto* ids =
      file_flag("--ids", flags->ids_file, "Instead: token ids, with spaces, line feeds or commas between; - is stdin");
  text->excludes(ids);
  add_text(
      *sub, "--dtype",
      [flags](const std::string& list) {
        flags->options.dtypes = parse_dtypes(list);
        flags->dtypes_given = true;
      },
      "Types of weights to compare with f32 (default: f32,bf16,f16,int8,int4); with --kv the one that is used "
      "(default: f32)")
      ->type_name("LIST");
  add_text(
      *sub, "--kv", [flags](const std::string& text) { add_kv(flags->options.kv, text); },
      "Compare caches instead of weights: how keys and values are stored, of f64, f32, bf16, f16, int8, int4; several "
      "times for several rows; all: bf16, f16, int8, int8,int4, int4,int8 and int4")
      ->type_name("[LAYERS:]K[,V]")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  add_number(*sub, "--tokens", flags->options.tokens, from_to<std::int64_t>(2, std::int64_t{1} << 40),
             "Tokens to read at most (default: all); with --flips those of the prompt (default: as many as fit)");
  auto* window = add_number(*sub, "--window", flags->options.window, from_to<std::int64_t>(2, std::int64_t{1} << 40),
                            "Tokens of a window (default: the model's context)");
  constexpr int kMostThreads = 1024;
  add_number(*sub, "--threads", flags->model.engine.threads, from_to(1, kMostThreads),
             "Threads; changes speed, never a number (default: as many as this process may run on)");
  auto* flips =
      sub->add_flag("--flips", flags->flips, "Where each type changes a greedy token of f32, and that no cache does");
  flips->excludes(window);
  add_number(*sub, "--steps", flags->steps, from_to(1, 1 << 20),
             "With --flips: greedy steps (default: 100, or fewer in a smaller context)")
      ->needs(flips);
  sub->add_flag("--json", flags->json, "One JSON object instead of a table (docs/json.md)");
  add_report_flag(*sub, flags->report, run)->needs(flips);
  sub->callback([flags, &run] {
    if (flags->text_file.empty() && flags->ids_file.empty()) {
      throw CLI::ValidationError("eval", "needs --text FILE or --ids FILE");
    }
    if (!flags->options.kv.empty() && !flags->flips) {
      if (!flags->dtypes_given) flags->options.dtypes = {DType::f32};
      if (flags->options.dtypes.size() != 1) {
        throw CLI::ValidationError("--dtype", "must be one type with --kv: caches are compared, not weights");
      }
    }
    run = [flags] { return run_eval(*flags); };
  });
}

}  // namespace stet::cli
