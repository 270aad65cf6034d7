// The part of completion scripts that is the same whatever the commands are.
#pragma once

namespace headlab {

// `_headlab_commands`, `_headlab_keys`, `_headlab_takes COMMAND` and `_headlab_choices
// WORDS-BEFORE` come first. zsh reads it, too: its compgen leaves out nothing, and it has no
// compopt, so that a candidate brings the blank behind it along, and where there is none files are
// completed.
inline constexpr const char* kBashFunctions = R"bash(
# _headlab_matching WORD CANDIDATES
_headlab_matching() {
  local candidate
  for candidate in $2; do
    case $candidate in
      "$1"*) echo "$candidate" ;;
    esac
  done
}

# Keys that begin so, one level at a time: `train.` before `train.steps=`.
_headlab_next_keys() {
  local key rest
  for key in $(_headlab_matching "$1" "$_headlab_keys"); do
    rest=${key#"$1"}
    case $rest in
      *.*) echo "$1${rest%%.*}." ;;
      *) echo "$key=" ;;
    esac
  done | sort -u
}

# _headlab_reply_runs WORD: the newest run, and those under runs/, quoted: a folder may have any name.
_headlab_reply_runs() {
  local found
  for found in @ runs/*/config.yaml runs/*/*/config.yaml; do
    if [[ $found != @ && ! -f $found ]]; then continue; fi
    printf -v found %q "${found%/config.yaml}"
    if [[ $found == "$1"* ]]; then COMPREPLY+=("$found "); fi
  done
}

# _headlab_reply BEFORE CANDIDATES BEHIND
_headlab_reply() {
  local candidate
  COMPREPLY=()
  for candidate in $2; do COMPREPLY+=("$1$candidate$3"); done
}

_headlab() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} key= stem= few= name
  local command=${COMP_WORDS[1]} options= positionals=
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    _headlab_reply '' "$(_headlab_matching "$word" "$_headlab_commands")" ' '
    return
  fi
  _headlab_takes "$command"
  if [[ $word == ?*=* ]]; then  # where = does not part words
    key=${word%%=*} stem=${word%%=*}= word=${word#*=}
  elif [[ $word == = ]]; then
    key=$before word=
  elif [[ $before == = ]]; then
    key=${COMP_WORDS[COMP_CWORD - 2]}
  elif [[ $before == --* ]]; then
    key="$command $before"
  fi
  if [[ $key ]]; then few=$(_headlab_matching "$word" "$(_headlab_choices "$key")"); fi
  if [[ $few ]]; then
    _headlab_reply "$stem" "$few" ' '
    return
  elif [[ $word == -* ]]; then
    _headlab_reply '' "$(_headlab_matching "$word" "$options")" ' '
    return
  elif [[ ! $stem && ( ! $key || $key == *' '* ) ]]; then
    for name in $positionals; do
      case $name in
        run | source | FILE)
          _headlab_reply_runs "$word"
          if ((${#COMPREPLY[@]})); then return; fi
          ;;
        overrides) if ((COMP_CWORD > 2)) || [[ $word ]]; then few=$(_headlab_next_keys "$word"); fi ;;
        *) few=$(_headlab_matching "$word" "$(_headlab_choices "$command $name")") ;;
      esac
      if [[ $few && $name == overrides ]]; then
        _headlab_reply '' "$few" ''
        return
      elif [[ $few ]]; then
        _headlab_reply '' "$few" ' '
        return
      fi
    done
  fi
  compopt +o nospace 2>/dev/null
  return 0
}
complete -o default -o nospace -F _headlab headlab
)bash";

inline constexpr const char* kFishFunctions = R"fish(function __headlab_runs
    echo @
    for found in runs/*/config.yaml runs/*/*/config.yaml
        path dirname $found 2>/dev/null; or dirname $found
    end
end
)fish";

}  // namespace headlab
