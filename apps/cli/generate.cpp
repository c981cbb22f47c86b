#include "generate.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <limits>
#include <memory>

#include "commands.hpp"
#include "completion.hpp"
#include "console.hpp"
#include "interrupt.hpp"

namespace stet::cli {
namespace {

constexpr const char* kExample =
    "Examples:\n"
    "  stet generate \"ROMEO:\" -n 120 --temperature 0.8 --seed 1\n"
    "  stet generate -m gpt2/ --file story.txt --json | jq -r .text\n"
    "  stet generate --prompts requests.jsonl --batch 4 > results.jsonl\n\n"
    "The text goes to stdout as it is made, one summary line to stderr. Without a tokenizer ids are printed.\n"
    "--prompts reads one JSON object a line, {\"prompt\": \"...\"} or {\"ids\": [...]}, with flags as fields over "
    "those of\n"
    "the command line (n, temperature, top_k, top_p, min_p, repetition_penalty, seed, sequence, stop, ignore_eos, "
    "id),\n"
    "and writes one JSON object a line in the same order.";

/// Streams a completion to stdout as it is made.
class TextStream {
 public:
  TextStream(Output& out, bool as_ids) : out_(out), as_ids_(as_ids) {}

  bool take(const TokenEvent& event) {
    if (!as_ids_) return out_.write_text(event.piece);
    if (!event.id) return true;
    const bool ok = out_.write(fmt::format("{}{}", first_ ? "" : " ", *event.id));
    first_ = false;
    return ok;
  }

 private:
  Output& out_;
  bool as_ids_, first_ = true;
};

Result<Request> prepare(const Engine& engine, const GenerateFlags& flags) {
  Request request = flags.request;
  auto ids = prompt_ids(engine, flags.prompt);
  if (!ids) return pass(ids);
  request.prompt = std::move(*ids);
  if (auto ok = engine.check(request); !ok) return pass(ok);
  return request;
}

/// One request; its text goes to `out` as it comes, unless JSON will tell it.
Result<Completion> run_request(Engine& engine, const Request& request, bool json, Output& out) {
  TextStream stream(out, engine.tokenizer() == nullptr);
  auto completions = engine.generate(
      std::span(&request, 1), [&](const TokenEvent& event) { return (json || stream.take(event)) && !interrupted(); },
      [] { return !interrupted(); });
  if (!completions) return pass(completions);
  return std::move(completions->front());
}

void check_flags(const GenerateFlags& flags) {
  if (flags.json && flags.echo) throw CLI::ValidationError("--echo", "does not go with --json");
}

}  // namespace

int generate_one(GenerateFlags flags) {
  catch_interrupts();
  if (auto ok = read_prompt(flags.prompt); !ok) return report(ok.error());
  auto engine = load_engine(flags.model);
  if (!engine) return report(engine.error());
  const auto request = prepare(*engine, flags);
  if (!request) return report(request.error());

  Output out(STDOUT_FILENO);
  if (flags.echo) out.write_text(flags.prompt.text);
  const auto completion = run_request(*engine, *request, flags.json, out);
  if (!completion) {
    end_text(out);
    return report(completion.error());
  }
  if (flags.json) out.write(dump(completion_json(*engine, *request, *completion)) + '\n');
  if (!flags.json && engine->tokenizer() == nullptr && !completion->ids.empty()) out.write("\n");
  if (out.closed()) return kOk;  // whoever read it has all they wanted
  end_text(out);
  if (!out.state()) return report(out.state().error());
  say(summary(*engine, *request, *completion));
  if (completion->reason == StopReason::no_room) return report({Code::capacity, completion->error});
  return completion->reason == StopReason::interrupted ? kInterrupted : kOk;
}

void add_generate(CLI::App& app, Run& run) {
  auto flags = std::make_shared<GenerateFlags>();
  auto* sub = app.add_subcommand("generate", "Continue a text, or many together");
  sub->footer(kExample);
  add_prompt_flags(*sub, flags->prompt, "PROMPT");
  add_model_flag(*sub, flags->model);
  add_number(*sub, "-n,--max-new", flags->request.max_new, from_to(0, std::numeric_limits<int>::max()),
             "Most new tokens; 0 only reads the prompt (default: 100)");
  add_sampling_flags(*sub, flags->request.sampling);
  add_text(
      *sub, "--stop",
      [flags](std::string text) {
        if (text.empty()) throw CLI::ValidationError("--stop", "must not be empty");
        flags->request.stop.push_back(std::move(text));
      },
      "End before this text; may be given several times")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  sub->add_flag("--ignore-eos", flags->request.ignore_eos, "Go on after the model's end token");
  add_engine_flags(*sub, flags->model);
  auto* prompts = add_text(
      *sub, "--prompts", [flags](std::string file) { flags->prompts = file_named("--prompts", std::move(file)); },
      "Read prompts from a JSONL file and decode them together; - is stdin");
  prompts->type_name("FILE");
  for (const char* other : {"PROMPT", "--file", "--ids"}) prompts->excludes(sub->get_option(other));
  add_number(*sub, "--batch", flags->batch, from_to(1, 65536), "With --prompts: most decoded together (default: 8)")
      ->needs(prompts);
  sub->add_flag("--json", flags->json, "One JSON object instead of text (docs/json.md)");
  sub->add_flag("--echo", flags->echo, "Print the prompt before the text")->excludes(prompts);
  sub->callback([flags, &run] {
    check_flags(*flags);
    run = [flags] { return flags->prompts.empty() ? generate_one(*flags) : generate_prompts(*flags); };
  });
}

}  // namespace stet::cli
