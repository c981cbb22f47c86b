#include "lab/verify.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <limits>
#include <memory>

#include "commands.hpp"
#include "console.hpp"
#include "files.hpp"
#include "interrupt.hpp"
#include "json.hpp"
#include "lab/golden.hpp"
#include "session.hpp"

namespace stet::cli {
namespace {

constexpr const char* kExample =
    "Examples:\n"
    "  stet verify\n"
    "  stet verify -m random:gpt2 --dtype f32 --budget 120\n"
    "  stet verify --plant flip-bit          (must fail: shows that it can)\n"
    "  stet verify -m gpt2/ --golden expected.json\n\n"
    "Runs ways to the same logits against each other (cached or from scratch, any chunking, batch, number of threads) "
    "and\n"
    "compares them bit by bit. One line a pair, then the verdict; exit 0 only if every pair is equal.";

struct VerifyFlags {
  lab::VerifyOptions options;
  ModelFlags model;  // the engine's part is for --golden
  bool dtype_given = false;
  std::string golden;
  bool json = false;
};

/// Why a pair counts or does not.
const char* word_of(const lab::Pair& pair) {
  if (pair.skipped) return "skipped";
  if (pair.differing > 0) return "DIFFERS";
  if (pair.compared == 0) return "EMPTY";
  return pair.equal() ? "equal" : "SAME PATH";
}

std::string pair_line(const lab::Pair& pair) {
  std::string line =
      fmt::format("{:<9} {}  {:<40} {:>4} tokens", word_of(pair), name_of(pair.dtype), pair.name, pair.tokens);
  if (!pair.skipped) line += fmt::format("  {:>9} compared, {} differing", pair.compared, pair.differing);
  if (pair.differing > 0) line += fmt::format(", by up to {} ulp", pair.max_ulp);
  if (!pair.note.empty()) line += fmt::format("  ({})", pair.note);
  return printable(line) + '\n';
}

Json pair_json(const lab::Pair& pair) {
  return {{"name", pair.name},           {"dtype", name_of(pair.dtype)},
          {"tokens", pair.tokens},       {"compared", pair.compared},
          {"differing", pair.differing}, {"max_ulp", pair.max_ulp},
          {"skipped", pair.skipped},     {"equal", pair.equal()},
          {"note", pair.note},           {"paths", {pair.path_a, pair.path_b}}};
}

std::string verdict(const lab::VerifyReport& report) {
  std::size_t pairs = 0, compared = 0, skipped = 0;
  std::string failed;
  for (const auto& pair : report.pairs) {
    skipped += pair.skipped ? 1 : 0;
    if (pair.skipped) continue;
    ++pairs;
    compared += pair.compared;
    if (!pair.equal()) failed += fmt::format("{} {} {}", failed.empty() ? ":" : ",", name_of(pair.dtype), pair.name);
  }
  std::string line =
      report.equal
          ? fmt::format("verdict: equal; {} pairs, {} values compared bit by bit, 0 differing", pairs, compared)
          : fmt::format("verdict: NOT equal{}", failed.empty() ? ": nothing was compared" : failed);
  if (skipped > 0) line += fmt::format("; {} skipped", skipped);
  return printable(line) + '\n';
}

/// The exit code of a command that streamed to `out`; `code` is the verdict's.
int finish(const Output& out, int code) {
  return out.state() ? code : report(out.state().error());
}

int verify_paths(VerifyFlags flags) {
  lab::VerifyOptions& options = flags.options;
  options.model = model_of(flags.model);
  if (flags.dtype_given) options.dtypes = {flags.model.engine.dtype};
  Output out(STDOUT_FILENO);
  Progress progress("verify");
  lab::VerifyCallbacks callbacks;
  callbacks.on_pair = [&](const lab::Pair& pair) {
    progress.clear();
    if (!flags.json) out.write(pair_line(pair));
  };
  callbacks.on_progress = [&](std::string_view what) { progress.show(what); };
  callbacks.keep_going = [&] { return !interrupted() && !out.closed() && out.state(); };
  const auto result = lab::verify(options, callbacks);
  progress.clear();
  if (!result) {
    // The reader went away before there was a verdict: silent, but not a success.
    if (out.closed() && !interrupted()) return kFailure;
    return out.state() ? report(result.error()) : report(out.state().error());
  }
  if (!flags.json) {
    out.write(verdict(*result));
    return finish(out, result->equal ? kOk : kFailure);
  }
  Json json;
  json["schema"] = kSchema;
  json["model"] = options.model;
  json["equal"] = result->equal;
  json["pairs"] = Json::array();
  for (const auto& pair : result->pairs) json["pairs"].push_back(pair_json(pair));
  out.write(dump(json) + '\n');
  return finish(out, result->equal ? kOk : kFailure);
}

std::string check_line(const lab::GoldenCheck& check) {
  const char* word = check.skipped ? "skipped" : check.passed ? "passed" : "FAILED";
  return printable(fmt::format("{:<8} {}{}{}", word, check.name, check.detail.empty() ? "" : ": ", check.detail)) +
         '\n';
}

int verify_golden(const VerifyFlags& flags) {
  const auto text = read_input(flags.golden);
  if (!text) return report(text.error());
  auto engine = load_engine(flags.model);
  if (!engine) return report(engine.error());
  const auto checks = lab::check_golden(*engine, *text, flags.golden, [] { return !interrupted(); });
  if (!checks) return report(checks.error());

  Output out(STDOUT_FILENO);
  std::size_t passed = 0, failed = 0, skipped = 0;
  Json json;
  json["schema"] = kSchema;
  json["model"] = engine->info().name;
  json["dtype"] = name_of(engine->options().dtype);
  json["golden"] = Json::array();
  for (const auto& check : *checks) {
    (check.skipped ? skipped : check.passed ? passed : failed) += 1;
    json["golden"].push_back(
        {{"name", check.name}, {"passed", check.passed}, {"skipped", check.skipped}, {"detail", check.detail}});
    if (!flags.json) out.write(check_line(check));
  }
  const bool good = failed == 0 && passed > 0;
  json["passed"] = good;
  out.write(flags.json ? dump(json) + '\n'
                       : fmt::format("verdict: {}; {} passed, {} failed, {} skipped\n",
                                     good ? "as published" : "NOT as published", passed, failed, skipped));
  return finish(out, good ? kOk : kFailure);
}

}  // namespace

void add_verify(CLI::App& app, Run& run) {
  auto flags = std::make_shared<VerifyFlags>();
  auto* sub = app.add_subcommand("verify", "Prove on this machine that every path gives the same bits");
  sub->footer(kExample);
  add_model_flag(*sub, flags->model);
  add_dtype_flag(*sub, flags->model);
  auto* tokens = add_number(*sub, "--tokens", flags->options.tokens, from_to<std::int64_t>(1, std::int64_t{1} << 40),
                            "Longest sequence, 4 to the model's context (default: the context, at most 128)");
  auto* budget = add_number<double>(
      *sub, "--budget", flags->options.budget_seconds,
      {"a finite number above 0", [](double s) { return s > 0 && s <= std::numeric_limits<double>::max(); }},
      "Seconds for everything: shortens sequences, never leaves a pair out (default: no limit)");
  auto* plant = add_text(
      *sub, "--plant",
      [flags](const std::string& name) {
        const auto parsed = lab::parse_plant(name);
        if (!parsed) throw CLI::ValidationError("--plant", "must be flip-bit|stale-row, not '" + name + "'");
        flags->options.plant = *parsed;
      },
      "Damage one side of each pair, to see it caught");
  plant->type_name("flip-bit|stale-row");
  auto* golden = add_text(
      *sub, "--golden", [flags](std::string file) { flags->golden = file_named("--golden", std::move(file)); },
      "Instead: compare the model with published ids and logits (docs/json.md)");
  golden->type_name("FILE")->excludes(tokens)->excludes(budget)->excludes(plant);
  sub->add_flag("--all", flags->options.all,
                "Every combination of layout, page, codec, window, chunk and threads, and forks and hits at every "
                "position: minutes for a small model")
      ->excludes(golden);
  sub->add_flag("--json", flags->json, "One JSON object instead of text (docs/json.md)");
  sub->get_option("--dtype")->description("Only this type (default: f32 and f64, each for itself; f32 with --golden)");
  sub->callback([flags, sub, &run] {
    flags->dtype_given = sub->get_option("--dtype")->count() > 0;
    run = [flags] {
      catch_interrupts();
      return flags->golden.empty() ? verify_paths(*flags) : verify_golden(*flags);
    };
  });
}

}  // namespace stet::cli
