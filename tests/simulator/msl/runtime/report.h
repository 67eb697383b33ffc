// Findings go into an array that Python reads.
#pragma once
#include "abi.h"

namespace msl {

inline void append(char (&text)[96], const char* words) {
  u32 end = 0;
  while (text[end]) end++;
  for (; *words && end < sizeof(text) - 1; words++) text[end++] = *words;
  text[end] = 0;
}

inline bool same_place(const Finding& a, const Finding& b) {
  return a.fault == b.fault && a.file == b.file && a.line == b.line && a.address == b.address && a.region == b.region &&
         a.legal == b.legal;
}

// One finding a place: the first thread to fail stands for the others. Returns null when the place is known.
inline Finding* report(const Finding& finding, const Lane& lane) {
  Dispatch& d = *msl_dispatch;
  for (u32 i = 0; i < d.finding_count; i++)
    if (same_place(d.findings[i], finding)) return nullptr;
  if (d.finding_count == d.finding_capacity) return nullptr;
  Finding& kept = d.findings[d.finding_count++];
  kept = finding;
  for (int i = 0; i < 3; i++) kept.thread[i] = msl_group.position[i] * msl_group.full_size[i] + lane.position[i];
  return &kept;
}

inline Finding* report(Fault fault, const Site& site, const Lane& lane, bool legal = false) {
  Finding finding{};
  finding.fault = fault;
  finding.legal = legal;
  finding.file = site.file;
  finding.line = site.line;
  Finding* kept = report(finding, lane);
  if (kept) append(kept->text, site.function);
  return kept;
}

}  // namespace msl
