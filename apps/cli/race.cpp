#include "lab/race.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "base/thread_pool.hpp"
#include "commands.hpp"
#include "console.hpp"
#include "interrupt.hpp"
#include "json.hpp"
#include "lab/contexts.hpp"
#include "report_folder.hpp"
#include "session.hpp"

namespace stet::cli {
namespace {

constexpr const char* kExample =
    "Examples:\n"
    "  stet race\n"
    "  stet race -m random:gpt2 --every 10 --report race/\n"
    "  stet race -m random:char,ctx=1024 --prompt 1 -n 512 --dtype f64\n"
    "  stet race --by context\n"
    "  stet race --breakdown -m random:gpt2 --context 16,256,1024\n"
    "  stet race --memory\n"
    "  stet race --memory --context 16384\n\n"
    "Generates the same text without a cache (holding all attention scores at once; holding those of 128 queries), "
    "with\n"
    "a cache that grows by copying, one that is there from the start, and one in pages. Every step is timed behind "
    "three\n"
    "that are not, and its logits compared bit by bit: exit 1 if any differs. --by context times one step behind each\n"
    "context instead, --memory what it takes.";

struct RaceFlags {
  ModelFlags model;
  lab::RaceOptions race;
  lab::ContextOptions contexts;
  lab::MemoryOptions memory;
  std::string by;
  bool by_memory = false, breakdown = false, json = false;
  ReportFlag report;
};

/// A table as a list of objects: numbers as numbers, what there is not as null.
Json rows_json(const report::Table& table) {
  Json rows = Json::array();
  for (const auto& row : table.rows) {
    Json object;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string& text = row[i].exact;
      double value = 0;
      std::int64_t whole = 0;
      Json& to = object[table.columns[i].field];
      if (text.empty()) {
        to = nullptr;
      } else if (parse_number(text, whole)) {
        to = whole;
      } else if (parse_number(text, value)) {
        to = value;
      } else {
        to = text;
      }
    }
    rows.push_back(std::move(object));
  }
  return rows;
}

Json head_json(const std::string& model, DType dtype, int threads, std::uint64_t seed) {
  return {{"schema", kSchema}, {"model", model}, {"dtype", name_of(dtype)}, {"threads", threads}, {"seed", seed}};
}

Json race_json(const lab::RaceReport& race, const report::Report& page) {
  Json json = head_json(race.options.model, race.options.dtype, race.options.threads, race.options.seed);
  json["new_tokens"] = race.options.new_tokens;
  json["every"] = race.options.every;
  json["equal"] = race.equal();
  json["rows"] = rows_json(page.sections.front().tables.front());
  const Json memory = rows_json(page.sections.front().tables.back());
  for (std::size_t i = 0; i < json["rows"].size(); ++i) {
    Json& row = json["rows"][i];
    row.update(memory[i]);
    for (const lab::RaceRun& run : race.runs) {
      if (row["form"] != field_of(run.form) || row["prompt"] != run.prompt) continue;
      row["estimated"] = run.estimated;
      row["compared"] = run.compared;
      row["different"] = run.different;
      Json steps = Json::array();
      for (const double ms : run.step_ms) steps.push_back(std::isfinite(ms) ? Json(ms) : Json(nullptr));
      row["step_ms"] = std::move(steps);
    }
  }
  return json;
}

Json contexts_json(const lab::ContextReport& contexts, const report::Report& page) {
  Json json =
      head_json(contexts.options.model, contexts.options.dtype, contexts.options.threads, contexts.options.seed);
  json["equal"] = contexts.compared > 0 ? Json(contexts.different == 0) : Json(nullptr);
  json["compared"] = contexts.compared;
  json["bend_layers"] = contexts.bend_layers;
  json["bend_with_head"] = contexts.bend_with_head;
  json["bend_measured"] = contexts.bend_measured ? Json(*contexts.bend_measured) : Json(nullptr);
  for (const auto& section : page.sections) json[section.tables.front().name] = rows_json(section.tables.front());
  return json;
}

Json memory_json(const lab::MemoryReport& memory, const report::Report& page) {
  Json json = head_json(memory.options.model, memory.options.dtype, memory.options.threads, memory.options.seed);
  json["context"] = memory.options.context;
  json["equal"] = memory.compared > 0 ? Json(memory.different == 0) : Json(nullptr);
  json["compared"] = memory.compared;
  json["rows"] = rows_json(page.sections.front().tables.front());
  return json;
}

/// Prints the page as text, or the JSON; the exit code.
int finish(const report::Report& page, bool equal, bool json) {
  Output out(STDOUT_FILENO);
  if (json) {
    out.write(page.json + '\n');
  } else {
    for (const auto& section : page.sections) {
      for (const auto& paragraph : section.paragraphs) out.write(printable(paragraph) + '\n');
      for (const auto& table : section.tables) out.write(printable(report::text_of(table), true) + '\n');
    }
    out.write(printable(page.summary) + '\n');
  }
  if (!out.state() && !out.closed()) return report(out.state().error());
  return equal ? kOk : kFailure;
}

template <class Callbacks>
Callbacks callbacks_of(Progress& progress) {
  Callbacks callbacks;
  callbacks.on_progress = [&progress](std::string_view what) { progress.show(what); };
  callbacks.keep_going = [] { return !interrupted(); };
  return callbacks;
}

/// Runs one experiment and prints what it found.
template <class Callbacks, class Options, class Experiment, class ToJson, class Equal>
int run_experiment(const RaceFlags& flags, const Options& options, const Experiment& experiment, const ToJson& to_json,
                   const Equal& equal) {
  const auto folder = ReportFolder::open(flags.report);
  if (!folder) return report(folder.error());
  Progress progress("race");
  const auto result = experiment(options, callbacks_of<Callbacks>(progress));
  progress.clear();
  if (!result) return report(result.error());
  report::Report page = report_of(*result);
  page.json = dump(to_json(*result, page));
  const int code = finish(page, equal(*result), flags.json);
  if (!folder->wanted()) return code;
  const int written = folder->write(std::move(page), options.model, options.seed);
  return code == kOk ? written : code;
}

int run_race(const RaceFlags& flags) {
  catch_interrupts();
  if (flags.by_memory) {
    return run_experiment<lab::ContextCallbacks>(flags, flags.memory, lab::memory_of_forms, memory_json,
                                                 [](const auto& memory) { return memory.different == 0; });
  }
  if (!flags.by.empty()) {
    return run_experiment<lab::ContextCallbacks>(flags, flags.contexts, lab::by_context, contexts_json,
                                                 [](const auto& contexts) { return contexts.different == 0; });
  }
  return run_experiment<lab::RaceCallbacks>(flags, flags.race, lab::race, race_json,
                                            [](const auto& race) { return race.equal(); });
}

/// Lengths with commas.
CLI::Option* add_lengths(CLI::App& app, const std::string& name, std::vector<Pos>& target, const std::string& help) {
  return add_list(
      app, name, "whole numbers from 1 with commas between", help, [&target] { target.clear(); },
      [&target](std::string_view text) {
        Pos value = 0;
        if (!parse_number(text, value) || value < 1) return false;
        target.push_back(value);
        return true;
      });
}

/// The options of all three experiments from the flags; throws a usage error of flags that do not go together.
void resolve(RaceFlags& flags, const CLI::App& app, std::optional<DType> dtype, const std::vector<Pos>& contexts) {
  if (flags.breakdown) {
    flags.by = "context";
    flags.contexts.most_uncached = 0;
  }
  const bool by_context = !flags.by.empty();
  const auto only = [&](const char* flag, bool fits, const char* where) {
    if (app.count(flag) > 0 && !fits) throw CLI::ValidationError(flag, std::string("goes with ") + where);
  };
  const bool plain = !by_context && !flags.by_memory;
  for (const char* flag : {"--prompt", "-n", "--every", "--all-logits", "--page"}) {
    only(flag, plain, "the race itself, not with --by or --memory");
  }
  only("--context", !plain, "--by context, --breakdown or --memory");
  only("--most-uncached", by_context && !flags.breakdown, "--by context");
  only("--trained", by_context && !flags.breakdown, "--by context");
  only("--tries", by_context, "--by context");
  only("--prefill-chunk", !by_context, "the race itself or --memory");
  if (flags.by_memory && contexts.size() > 1) throw CLI::ValidationError("--context", "must be one with --memory");

  // The experiments of the second write-up are of its model: a character GPT in f64.
  const bool given = !flags.model.model.empty();
  const std::string model = given ? flags.model.model : plain ? model_of(flags.model) : "random:char,ctx=16384";
  flags.race.model = flags.contexts.model = flags.memory.model = model;
  flags.race.dtype = dtype.value_or(DType::f32);
  flags.contexts.dtype = flags.memory.dtype = dtype.value_or(given ? DType::f32 : DType::f64);
  flags.contexts.threads = flags.memory.threads = flags.race.threads;
  flags.contexts.seed = flags.memory.seed = flags.race.seed;
  flags.contexts.contexts = contexts;
  if (!contexts.empty()) flags.memory.context = contexts.front();
  flags.contexts.trained_must_fit = app.count("--trained") > 0;
  if (by_context && !flags.breakdown && !flags.contexts.trained_must_fit) flags.contexts.trained = model_of({});
  if (app.count("--prefill-chunk") > 0) flags.memory.prefill_chunk = flags.race.prefill_chunk;
}

}  // namespace

void add_race(CLI::App& app, Run& run) {
  auto flags = std::make_shared<RaceFlags>();
  auto contexts = std::make_shared<std::vector<Pos>>();
  lab::RaceOptions& o = flags->race;
  o.threads = std::min(base::available_cpus(), 1024);
  auto* sub = app.add_subcommand("race", "The loop without a cache against the loop with one: time, memory, bits");
  sub->footer(kExample);
  add_model_flag(*sub, flags->model);
  add_dtype_flag(*sub, flags->model);
  add_lengths(*sub, "--prompt", o.prompts,
              "Tokens of the prompt, random ids (default: 16,128,512, or parts of a smaller context)");
  add_number(*sub, "-n,--tokens", o.new_tokens, from_to(1, 1 << 20),
             "New tokens (default: 400, or a quarter of a smaller context)");
  add_number(*sub, "--every", o.every, from_to(1, 1 << 20),
             "Without a cache measure only each K-th step; totals are then estimated, and say so")
      ->type_name("K");
  sub->add_flag("--all-logits", o.all_logits,
                "Without a cache compute the logits of every position, as the first write-up does, not of the last");
  add_number(*sub, "--prefill-chunk", o.prefill_chunk, from_to<std::int64_t>(0, std::int64_t{1} << 30),
             "With a cache read the prompt in steps of N; 0: in one (default: 0; with --memory 256)");
  add_number(
      *sub, "--page", o.page_tokens,
      Rule<std::int64_t>{"16, 32, 64 or 128", [](std::int64_t n) { return n == 16 || n == 32 || n == 64 || n == 128; }},
      "Tokens in a page of the paged cache (default: 16)");
  add_text(
      *sub, "--by",
      [flags](const std::string& by) {
        if (by != "context") throw CLI::ValidationError("--by", "must be context, not '" + by + "'");
        flags->by = by;
      },
      "One step behind each of several contexts, the fastest of some tries, split into its parts, instead of a text "
      "(default model: random:char,ctx=16384 in f64)")
      ->type_name("context");
  auto* memory = sub->add_flag("--memory", flags->by_memory,
                               "What a step, and filling the cache, takes at its peak (same default model)");
  memory->excludes("--by");
  sub->add_flag("--breakdown", flags->breakdown,
                "With the cache only: what part of a step are weights, attention, the head and the rest, by context")
      ->excludes("--by")
      ->excludes(memory);
  add_lengths(
      *sub, "--context", *contexts,
      "With --by, --breakdown or --memory: tokens, the new one included (default: 16 to the model's context; 2048)");
  add_number(*sub, "--most-uncached", flags->contexts.most_uncached, from_to<std::int64_t>(0, std::int64_t{1} << 40),
             "With --by: longer contexts are measured with the cache only (default: 2048)");
  add_text(
      *sub, "--trained", [flags](std::string model) { flags->contexts.trained = std::move(model); },
      "With --by: a trained model, beside random weights of its shape (default: the bundled one if it has the shape)")
      ->type_name("MODEL");
  add_number(*sub, "--tries", flags->contexts.tries, from_to(1, 1000),
             "With --by: of which the fastest counts; with a cache ten times as many (default: 3)");
  add_number(*sub, "--threads", o.threads, from_to(1, 1024), "Threads (default: as many as this process may run on)");
  add_number<std::uint64_t>(*sub, "--seed", o.seed,
                            {"a whole number from 0 that fits 64 bits", [](std::uint64_t) { return true; }},
                            "Of the random token ids (default: 0)");
  sub->add_flag("--json", flags->json, "One JSON object instead of tables (docs/json.md)");
  add_report_flag(*sub, flags->report, run);
  sub->callback([flags, contexts, sub, &run] {
    std::optional<DType> dtype;
    if (sub->count("--dtype") > 0) dtype = flags->model.engine.dtype;
    resolve(*flags, *sub, dtype, *contexts);
    run = [flags] { return run_race(*flags); };
  });
}

}  // namespace stet::cli
