// stet plan: the memory bill of a model, a preset or a local one.
#pragma once

#include "lab/bill.hpp"
#include "options.hpp"
#include "report_folder.hpp"

namespace stet::cli {

struct BillFlags {
  ModelFlags model;  // its engine's cache, max_len, max_seqs and kv are not used: the lists below are
  lab::BillOptions options;
  bool dtype_given = false, kv_given = false;
  bool list = false, json = false;
  ReportFlag report;
};

/// --model, --dtype, --cache, --page, --pool, --window, --kv, --context, --batch, --fit, --list.
void add_bill_flags(CLI::App& app, BillFlags& flags);

/// Prints the bill; returns the exit code.
int run_bill(const BillFlags& flags);

}  // namespace stet::cli
