// What transformers assumes of a key that config.json leaves out.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace headlab {

// Every key that is read of such a config.json, with the value that the configuration class of
// transformers 5.24 gives it where the file does not (null: none); an empty object where the type
// is not known. `renamed`, likewise: other names of a key that the class takes (attribute_map).
const nlohmann::json& hugging_face_defaults(const std::string& model_type);
const nlohmann::json& hugging_face_other_names(const std::string& model_type);

}  // namespace headlab
