#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "commands.hpp"
#include "completion.hpp"
#include "console.hpp"
#include "files.hpp"
#include "generate.hpp"
#include "interrupt.hpp"
#include "prompts.hpp"

namespace stet::cli {
namespace {

Result<std::vector<PromptLine>> read_lines(const GenerateFlags& flags) {
  const auto content = read_input(flags.prompts);
  if (!content) return pass(content);
  return read_prompts(*content, flags.prompts == "-" ? "stdin" : flags.prompts, flags.request);
}

/// Every request with its ids, checked, so that nothing runs before all can.
Result<std::vector<Request>> prepare(const Engine& engine, const std::vector<PromptLine>& lines, bool special) {
  std::vector<Request> requests;
  for (const auto& line : lines) {
    Request request = line.request;
    const auto refuse = [&line](const Error& error) {
      return fail(error.code, fmt::format("{}: {}", line.where, error.message));
    };
    if (line.text) {
      PromptFlags prompt;
      prompt.text = *line.text;
      prompt.special = special;
      auto ids = prompt_ids(engine, prompt);
      if (!ids) return refuse(ids.error());
      request.prompt = std::move(*ids);
    }
    if (auto ok = engine.check(request); !ok) return refuse(ok.error());
    requests.push_back(std::move(request));
  }
  return requests;
}

Result<std::vector<Completion>> run_requests(Engine& engine, const std::vector<Request>& requests) {
  Progress progress("decoding");
  std::size_t done = 0;
  const auto on_token = [&](const TokenEvent& event) {
    if (!event.id) progress.show(static_cast<double>(++done) / static_cast<double>(requests.size()));
    return !interrupted();
  };
  return engine.generate(requests, on_token, [] { return !interrupted(); });
}

Json result_json(const Engine& engine, const PromptLine& line, const Request& request, const Completion& completion) {
  Json json = completion_json(engine, request, completion);
  if (!line.id.is_null()) json["id"] = line.id;
  return json;
}

}  // namespace

int generate_prompts(const GenerateFlags& given) {
  catch_interrupts();
  const auto lines = read_lines(given);
  if (!lines) return report(lines.error());
  GenerateFlags flags = given;
  flags.model.engine.max_seqs =
      static_cast<int>(std::min<std::size_t>(static_cast<std::size_t>(flags.batch), lines->size()));
  if (flags.dry_run) return dry_run(flags);
  auto engine = load_for(flags);
  if (!engine) return report(engine.error());
  const auto requests = prepare(*engine, *lines, flags.prompt.special);
  if (!requests) return report(requests.error());

  if (!requests->empty()) {
    if (auto ok = warn_of_codecs(*engine, requests->front()); !ok) return report(ok.error());
  }
  const auto start = std::chrono::steady_clock::now();
  const auto completions = run_requests(*engine, *requests);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  if (!completions) return report(completions.error());

  Output out(STDOUT_FILENO);
  bool stopped = false, failed = false;
  for (std::size_t i = 0; i < completions->size(); ++i) {
    const Completion& completion = (*completions)[i];
    out.write(dump(result_json(*engine, (*lines)[i], (*requests)[i], completion)) + '\n');
    stopped |= completion.reason == StopReason::interrupted;
    if (completion.reason != StopReason::no_room) continue;
    failed = true;
    say(fmt::format("{}: {}", (*lines)[i].where, completion.error));
  }
  if (out.closed()) return end_run(*engine, flags, kOk);
  if (!out.state()) return report(out.state().error());
  say(summary(*engine, *requests, *completions, seconds.count()));
  return end_run(*engine, flags, stopped ? kInterrupted : failed ? kFailure : kOk);
}

}  // namespace stet::cli
