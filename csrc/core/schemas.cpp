#include "schemas.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <sstream>

namespace tmo {

namespace {

std::string find_conflict() {
  std::ostringstream message;
  for (const char* text : kSchemas) {
    const c10::FunctionSchema ours = torch::schema(text);
    const auto known = c10::Dispatcher::singleton().findSchema({ours.name(), ours.overload_name()});
    if (!known || known->schema() == ours) continue;
    message << "the schema of " << ours.name() << " must be " << ours << ", got " << known->schema()
            << " from another package. Update or uninstall that package.";
    break;
  }
  return message.str();
}

}  // namespace

const std::string& conflict() {
  static const std::string text = find_conflict();
  return text;
}

}  // namespace tmo
