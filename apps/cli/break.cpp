#include "lab/break.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "commands.hpp"
#include "console.hpp"
#include "interrupt.hpp"
#include "json.hpp"
#include "report_folder.hpp"
#include "session.hpp"

namespace stet::cli {
namespace {

constexpr const char* kExample =
    "Examples:\n"
    "  stet break\n"
    "  stet break positions-restart naive-slide\n"
    "  stet break -m random:llama-tiny --json\n\n"
    "Puts the bugs that everyone writes into a cache in place, one after the other, and shows where each hides, what "
    "it\n"
    "does to a text and which pair of stet verify catches it. Exit 0 only if every one is caught.";

struct BreakFlags {
  ModelFlags model;
  lab::BreakOptions options;
  bool json = false;
  ReportFlag report;
};

Json number_or_null(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json bug_json(const lab::BugReport& bug) {
  Json json = {{"bug", bug.name},
               {"what", bug.what},
               {"injected", bug.injected},
               {"cure", bug.cure},
               {"model", bug.model},
               {"stand_in", bug.stand_in},
               {"prompt_ids", bug.prompt},
               {"first_logit", or_null(bug.first_logit)},
               {"first_token", or_null(bug.first_token)},
               {"agreeing", bug.agreeing},
               {"asked", bug.asked}};
  json["dormant"] = Json::array();
  for (const auto& d : bug.dormant) {
    json["dormant"].push_back({{"when", d.when}, {"compared", d.compared}, {"differing", d.differing}});
  }
  json["distance"] = Json::array();
  for (const double d : bug.distance) json["distance"].push_back(number_or_null(d));
  json["signature"] = Json::object();
  for (const auto& s : bug.signature) json["signature"][s.field] = number_or_null(s.value);
  const auto text = [&](const char* key, const auto& ids, const std::optional<std::string>& words, double repetition) {
    Json one = {{"ids", ids}, {"repetition", repetition}};
    if (words) set_text(one, *words);
    json[key] = std::move(one);
  };
  text("right", bug.ids_before, bug.text_before, bug.repetition_before);
  text("wrong", bug.ids_after, bug.text_after, bug.repetition_after);
  json["pair"] = {{"name", bug.with.name},
                  {"tokens", bug.with.tokens},
                  {"compared", bug.with.compared},
                  {"differing_with", bug.with.differing},
                  {"differing_without", bug.without.differing}};
  json["sleeps"] = bug.sleeps();
  json["caught"] = bug.caught();
  return json;
}

Json report_json(const lab::BreakReport& report) {
  Json json = {{"schema", kSchema},   {"model", report.model},   {"dtype", name_of(report.dtype)},
               {"seed", report.seed}, {"caught", report.caught}, {"bugs", Json::array()}};
  for (const auto& bug : report.bugs) json["bugs"].push_back(bug_json(bug));
  return json;
}

std::string verdict(const lab::BreakReport& report) {
  if (report.caught) {
    const std::size_t n = report.bugs.size();
    return fmt::format("verdict: {} bug{}, every one caught\n", n, n == 1 ? "" : "s");
  }
  std::string missed;
  for (const auto& bug : report.bugs) {
    if (bug.caught() && bug.sleeps()) continue;
    missed += fmt::format("{} {}{}", missed.empty() ? "" : ",", bug.name,
                          bug.caught() ? " (awake where it should sleep)" : "");
  }
  return fmt::format("verdict: NOT caught:{}\n", missed);
}

int run_break(BreakFlags flags) {
  catch_interrupts();
  const auto folder = ReportFolder::open(flags.report);
  if (!folder) return cli::report(folder.error());
  lab::BreakOptions& options = flags.options;
  options.model = model_of(flags.model);
  options.learned = model_of({});
  options.dtype = flags.model.engine.dtype;
  Output out(STDOUT_FILENO);
  Progress progress("break");
  lab::BreakCallbacks callbacks;
  callbacks.on_bug = [&](const lab::BugReport& bug) {
    progress.clear();
    if (!flags.json) out.write(printable(lab::words_of(bug), true) + '\n');
  };
  callbacks.on_progress = [&](std::string_view what) { progress.show(what); };
  callbacks.keep_going = [&] { return !interrupted() && !out.closed() && out.state(); };
  const auto result = lab::break_model(options, callbacks);
  progress.clear();
  if (!result) {
    if (out.closed() && !interrupted()) return kFailure;
    return out.state() ? report(result.error()) : report(out.state().error());
  }
  out.write(flags.json ? dump(report_json(*result)) + '\n'
                       : printable(report::text_of(lab::table_of(*result)) + '\n' + verdict(*result), true));
  if (!out.state()) return report(out.state().error());
  if (folder->wanted()) {
    auto page = lab::report_of(*result);
    page.json = dump(report_json(*result));
    if (const int code = folder->write(std::move(page), result->model, result->seed); code != kOk) return code;
  }
  return result->caught ? kOk : kFailure;
}

}  // namespace

void add_break(CLI::App& app, Run& run) {
  auto flags = std::make_shared<BreakFlags>();
  auto* sub = app.add_subcommand("break", "Put known cache bugs in place, and see each one caught");
  sub->footer(kExample);
  std::string names;
  for (const std::string& name : lab::bug_names()) names += (names.empty() ? "" : ", ") + name;
  add_text(
      *sub, "BUG",
      [flags, names](std::string name) {
        const auto known = lab::bug_names();
        if (std::find(known.begin(), known.end(), name) == known.end()) {
          throw CLI::ValidationError("BUG", "must be one of " + names + ", not '" + name + "'");
        }
        flags->options.bugs.push_back(std::move(name));
      },
      "Only these, of " + names + " (default: all)")
      ->type_name("BUG")
      ->expected(-1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  add_model_flag(*sub, flags->model);
  add_dtype_flag(*sub, flags->model);
  add_number(*sub, "-n,--max-new", flags->options.steps, from_to(1, std::numeric_limits<int>::max()),
             "New tokens of each text, as far as the context goes (default: 100; 24 for large models)");
  add_number<std::uint64_t>(*sub, "--seed", flags->options.seed,
                            {"a whole number from 0 that fits 64 bits", [](std::uint64_t) { return true; }},
                            "Of the random ids that pairs are compared on, and of prompts for models without a "
                            "tokenizer (default: 0)");
  sub->add_flag("--json", flags->json, "One JSON object instead of text (docs/json.md)");
  add_report_flag(*sub, flags->report, run);
  sub->callback([flags, &run] { run = [flags] { return run_break(*flags); }; });
}

}  // namespace stet::cli
