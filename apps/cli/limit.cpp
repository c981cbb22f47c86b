#include "lab/limit.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <limits>
#include <memory>

#include "commands.hpp"
#include "console.hpp"
#include "interrupt.hpp"
#include "json.hpp"
#include "lab/words.hpp"
#include "report_folder.hpp"
#include "session.hpp"

namespace stet::cli {
namespace {

constexpr const char* kExample =
    "Examples:\n"
    "  stet limit\n"
    "  stet limit -m random:llama-tiny --limit 64 --lengths 50,150\n\n"
    "Four ways past the longest text that a model's positions allow, measured: stop; compute the last window anew for\n"
    "every token; slide the cache, which is wrong where positions are learned; and what a rotary model can do "
    "instead.\n"
    "Exit 0 only if what is said to be exact is so to the bit, and the slide was caught.";

struct LimitFlags {
  ModelFlags model;
  lab::LimitOptions options;
  bool json = false;
  ReportFlag report;
};

Json times_json(const std::vector<double>& seconds) {
  Json json = Json::array();
  for (const double s : seconds) json.push_back(s * 1e3);
  return json;
}

Json slide_json(const lab::LimitReport& report) {
  const lab::BugReport& slide = report.slide;
  Json json = {{"model", slide.model}, {"stand_in", slide.stand_in}};
  for (const auto& s : slide.signature) json[s.field] = s.value;
  const auto text = [](const std::vector<TokenId>& ids, const std::optional<std::string>& words, double repetition) {
    Json one = {{"ids", ids}, {"repetition", repetition}};
    if (words) set_text(one, *words);
    return one;
  };
  json["right"] = text(slide.ids_before, slide.text_before, slide.repetition_before);
  json["slid"] = text(slide.ids_after, slide.text_after, slide.repetition_after);
  json["step_ms"] = times_json(report.slide_seconds);
  return json;
}

Json report_json(const lab::LimitReport& report) {
  Json json = {{"schema", kSchema},         {"model", report.model},     {"dtype", name_of(report.dtype)},
               {"context", report.context}, {"limit", report.limit},     {"fitting", report.fitting},
               {"tries", report.tries},     {"threads", report.threads}, {"seed", report.seed}};
  json["runs"] = Json::array();
  for (const auto& run : report.runs) {
    json["runs"].push_back({{"cached", run.cached},
                            {"new_tokens", run.tokens},
                            {"past", run.past},
                            {"seconds", lab::total_of(run.seconds, 0, run.tokens)},
                            {"published_seconds", run.published > 0 ? Json(run.published) : Json(nullptr)},
                            {"step_ms", times_json(run.seconds)}});
  }
  json["recompute"] = {{"compared", report.compared}, {"differing", report.differing}};
  json["slide"] = slide_json(report);
  const auto& rotary = report.rotary;
  json["rotary"] = {{"model", rotary.model},
                    {"stand_in", rotary.stand_in},
                    {"window", rotary.window},
                    {"new_tokens", rotary.tokens},
                    {"compared", rotary.compared},
                    {"differing", rotary.differing},
                    {"evicted", rotary.evicted},
                    {"reserved_bytes", rotary.reserved},
                    {"reserved_bytes_masked", rotary.reserved_masked},
                    {"step_ms", times_json(rotary.seconds)}};
  json["holds"] = report.holds();
  return json;
}

std::string report_text(const lab::LimitReport& report) {
  std::string text = report::text_of(lab::table_of(report)) + '\n';
  for (const std::string& line : lab::words_of(report)) text += line + '\n';
  const auto show = [&](const char* label, const std::optional<std::string>& words) {
    if (words) text += fmt::format("  {:<11} \"{}\"\n", label, lab::in_one_line(*words));
  };
  show("recomputed", report.slide.text_before);
  show("slid", report.slide.text_after);
  return text;
}

std::vector<int> parse_lengths(std::string_view list) {
  std::vector<int> lengths;
  while (true) {
    const auto comma = std::min(list.find(','), list.size());
    int n = 0;
    constexpr int kMost = 100000;
    if (!parse_number(list.substr(0, comma), n) || n < 1 || n > kMost) {
      throw CLI::ValidationError("--lengths",
                                 fmt::format("must be whole numbers from 1 to {} with commas between, not '{}'", kMost,
                                             list.substr(0, comma)));
    }
    lengths.push_back(n);
    if (comma == list.size()) return lengths;
    list.remove_prefix(comma + 1);
  }
}

int run_limit(LimitFlags flags) {
  catch_interrupts();
  const auto folder = ReportFolder::open(flags.report);
  if (!folder) return cli::report(folder.error());
  lab::LimitOptions& options = flags.options;
  options.model = model_of(flags.model);
  options.learned = model_of({});
  options.dtype = flags.model.engine.dtype;
  Progress progress("limit");
  lab::LimitCallbacks callbacks;
  callbacks.on_progress = [&](std::string_view what) { progress.show(what); };
  callbacks.keep_going = [] { return !interrupted(); };
  const auto result = lab::measure_limit(options, callbacks);
  progress.clear();
  if (!result) return report(result.error());
  Output out(STDOUT_FILENO);
  out.write(flags.json ? dump(report_json(*result)) + '\n' : printable(report_text(*result), true));
  if (!out.state()) return report(out.state().error());
  if (folder->wanted()) {
    auto page = lab::report_of(*result);
    page.json = dump(report_json(*result));
    if (const int code = folder->write(std::move(page), result->model, result->seed); code != kOk) return code;
  }
  if (out.closed()) return kOk;
  return result->holds() ? kOk : kFailure;
}

}  // namespace

void add_limit(CLI::App& app, Run& run) {
  auto flags = std::make_shared<LimitFlags>();
  auto* sub = app.add_subcommand("limit", "What to do past the context, and what it costs");
  sub->footer(kExample);
  add_model_flag(*sub, flags->model);
  add_dtype_flag(*sub, flags->model);
  add_number(
      *sub, "--limit", flags->options.limit, from_to<std::int64_t>(1, std::int64_t{1} << 40),
      "Tokens of the window, 12 to the model's context (default: the context, at most 128, or 32 for large models)");
  add_text(
      *sub, "--lengths", [flags](const std::string& list) { flags->options.lengths = parse_lengths(list); },
      "New tokens of the texts that are timed (default: 100,300 for a limit of 128, else in proportion)")
      ->type_name("LIST");
  constexpr int kMostTries = 1000, kMostThreads = 1024;
  add_number(*sub, "--tries", flags->options.tries, from_to(1, kMostTries),
             "Each step is the fastest of so many (default: 5; 3 for large models)");
  add_number(*sub, "--threads", flags->options.threads, from_to(1, kMostThreads),
             "Threads; changes speed, never a bit (default: as many as this process may run on)");
  add_number<std::uint64_t>(*sub, "--seed", flags->options.seed,
                            {"a whole number from 0 that fits 64 bits", [](std::uint64_t) { return true; }},
                            "Of the random ids of models without a tokenizer (default: 0)");
  sub->add_flag("--json", flags->json, "One JSON object instead of text (docs/json.md)");
  add_report_flag(*sub, flags->report, run);
  sub->callback([flags, &run] { run = [flags] { return run_limit(*flags); }; });
}

}  // namespace stet::cli
