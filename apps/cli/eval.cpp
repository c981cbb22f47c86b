#include "lab/eval.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>

#include "commands.hpp"
#include "console.hpp"
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
    "  stet tokenize -m gpt2/ --json < book.txt > ids.json; stet eval -m gpt2/ --ids ids.json\n\n"
    "Reads the text with weights of each type and compares what they predict with f32: perplexity, mean KL divergence\n"
    "(nats a position), how often the most likely token is the same, largest distance of a logit. The text is cut "
    "into\n"
    "windows; of each, all tokens but the first are predicted. f32 is always run; at most two models are in memory.";

struct EvalFlags {
  ModelFlags model;
  lab::EvalOptions options;
  std::string text_file, ids_file;
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

Json report_json(const lab::EvalReport& report, const std::string& model) {
  Json json;
  json["schema"] = kSchema;
  json["model"] = model;
  json["tokens"] = report.tokens;
  json["window"] = report.window;
  json["scored"] = report.scored;
  json["rows"] = Json::array();
  for (const auto& row : report.rows) {
    json["rows"].push_back({{"dtype", name_of(row.dtype)},
                            {"perplexity", row.perplexity},
                            {"nll", row.nll},
                            {"kl", row.kl},
                            {"top1", row.top1},
                            {"max_logit_distance", row.max_logit_distance},
                            {"max_logit_relative", row.max_logit_relative},
                            {"weight_bytes", row.weight_bytes}});
  }
  return json;
}

std::string report_text(const lab::EvalReport& report, const std::string& model) {
  std::string text = printable(fmt::format("{}: {} tokens in windows of {}, {} predicted", model, report.tokens,
                                           report.window, report.scored)) +
                     '\n';
  text += fmt::format("{:<5} {:>11} {:>9} {:>11} {:>8} {:>15} {:>9} {:>14}\n", "type", "perplexity", "nll", "KL to f32",
                      "top-1", "logit distance", "relative", "weight bytes");
  for (const auto& row : report.rows) {
    text += fmt::format("{:<5} {:>11.5f} {:>9.5f} {:>11.3e} {:>6.2f} % {:>15.3e} {:>9.1e} {:>14}\n", name_of(row.dtype),
                        row.perplexity, row.nll, row.kl, row.top1 * 100, row.max_logit_distance, row.max_logit_relative,
                        row.weight_bytes);
  }
  return text;
}

int run_eval(EvalFlags flags) {
  catch_interrupts();
  flags.options.model = model_of(flags.model);
  flags.options.threads = flags.model.engine.threads;
  const auto input = read_eval_input(flags);
  if (!input) return report(input.error());
  Progress progress("eval");
  lab::EvalCallbacks callbacks;
  callbacks.on_progress = [&](std::string_view what) { progress.show(what); };
  callbacks.keep_going = [] { return !interrupted(); };
  const auto result = lab::evaluate(flags.options, *input, callbacks);
  progress.clear();
  if (!result) return report(result.error());
  Output out(STDOUT_FILENO);
  out.write(flags.json ? dump(report_json(*result, flags.options.model)) + '\n'
                       : report_text(*result, flags.options.model));
  return out.state() ? kOk : report(out.state().error());
}

}  // namespace

void add_eval(CLI::App& app, Run& run) {
  auto flags = std::make_shared<EvalFlags>();
  flags->model.engine.threads = 0;
  auto* sub = app.add_subcommand("eval", "What each weight type costs in quality, against f32");
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
      *sub, "--dtype", [flags](const std::string& list) { flags->options.dtypes = parse_dtypes(list); },
      "Types to compare with f32 (default: f32,bf16,f16,int8,int4)")
      ->type_name("LIST");
  add_number(*sub, "--tokens", flags->options.tokens, from_to<std::int64_t>(2, std::int64_t{1} << 40),
             "Tokens to read at most (default: all)");
  add_number(*sub, "--window", flags->options.window, from_to<std::int64_t>(2, std::int64_t{1} << 40),
             "Tokens of a window (default: the model's context)");
  constexpr int kMostThreads = 1024;
  add_number(*sub, "--threads", flags->model.engine.threads, from_to(1, kMostThreads),
             "Threads; changes speed, never a number (default: as many as this process may run on)");
  sub->add_flag("--json", flags->json, "One JSON object instead of a table (docs/json.md)");
  sub->callback([flags, &run] {
    if (flags->text_file.empty() && flags->ids_file.empty()) {
      throw CLI::ValidationError("eval", "needs --text FILE or --ids FILE");
    }
    run = [flags] { return run_eval(*flags); };
  });
}

}  // namespace stet::cli
