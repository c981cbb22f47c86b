#include "eval_flips.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include "console.hpp"
#include "interrupt.hpp"
#include "json.hpp"

namespace stet::cli {
namespace {

Json row_json(const lab::FlipRow& row) {
  Json json = {{"dtype", name_of(row.dtype)},
               {"kv", row.kv},
               {"max_logit_distance", row.largest},
               {"mean_logit_distance", row.mean},
               {"max_logit_relative", row.relative},
               {"distances", row.distances},
               {"flips", row.flips},
               {"first_flip", nullptr},
               {"compared", row.compared},
               {"differing", row.differing},
               {"cached_equals_recomputed", row.equal()}};
  if (row.first) {
    json["first_flip"] = {
        {"step", row.first->step}, {"was", row.first->was}, {"is", row.first->is}, {"margin", row.first->margin}};
  }
  return json;
}

Json report_json(const lab::FlipReport& report) {
  Json json;
  json["schema"] = kSchema;
  json["model"] = report.model;
  json["prompt_tokens"] = report.prompt;
  json["steps"] = report.steps;
  json["ids"] = report.ids;
  set_text(json, report.text);
  json["equal"] = report.equal();
  json["rows"] = Json::array();
  for (const auto& row : report.rows) json["rows"].push_back(row_json(row));
  return json;
}

}  // namespace

int show_flips(const lab::FlipOptions& options, const lab::EvalInput& input, bool json, const ReportFlag& flag) {
  const auto folder = ReportFolder::open(flag);
  if (!folder) return report(folder.error());
  Progress progress("eval");
  lab::EvalCallbacks callbacks;
  callbacks.on_progress = [&](std::string_view what) { progress.show(what); };
  callbacks.keep_going = [] { return !interrupted(); };
  const auto result = lab::flips(options, input, callbacks);
  progress.clear();
  if (!result) return report(result.error());
  report::Report page = lab::report_of(*result);
  page.json = dump(report_json(*result));
  Output out(STDOUT_FILENO);
  if (json) {
    out.write(page.json + '\n');
  } else {
    out.write_text(report::text_of(page.sections.front().tables.front()));
  }
  if (!out.state()) return report(out.state().error());
  if (folder->wanted()) {
    if (const int code = folder->write(std::move(page), options.model); code != kOk) return code;
  }
  if (result->equal()) return kOk;
  say("cached and recomputed logits differ: see the table");
  return kFailure;
}

}  // namespace stet::cli
