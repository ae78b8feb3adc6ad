# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by scripts/demo and scripts/test: one virtual environment of their own, .venv-scripts.
#
# FLASHINFER_MSA_TORCH  torch requirement, `torch` when unset (say `torch==2.11.0`)
# PYTHON                interpreter to start from, `python3` when unset

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
venv="$root/.venv-scripts"

has_nvcc() {
  local home
  command -v nvcc >/dev/null && return
  for home in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda; do
    [[ -n $home && -x $home/bin/nvcc ]] && return
  done
  return 1
}

# Prints what an environment depends on: another answer means that it has to be looked at again.
_stamp() {  # torch requirement
  "$python" -c 'import sys; print(sys.version, sys.prefix)'
  printf '%s\n' "$root" "$1"
  cat "$root/pyproject.toml" "$root/scripts/lib/"*
}

# A machine that has its own torch, perhaps one without a network, lends what it has installed.
# A .pth line rather than --system-site-packages: the interpreter may itself be an environment's.
_create() {  # torch requirement
  local site
  rm -rf "$venv"
  "$python" -m venv "$venv"
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  if "$python" "$root/scripts/lib/missing.py" --quiet --no-project "$1"; then
    "$python" -c 'import sysconfig
print(*{sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}, sep="\n")' \
      >"$site/zz_lent_packages.pth"
  fi
}

_install() {  # torch requirement, extras...
  local torch=$1 extras missing log="$venv/install.log"
  shift
  extras=$(IFS=,; echo "$*")
  mapfile -t missing < <("$venv/bin/python" "$root/scripts/lib/missing.py" "$torch" "$@")
  if ((${#missing[@]} == 0)) && _link; then return; fi
  echo "installing: ${missing[*]:-the package itself}" >&2
  # torch first and alone: a requirement that names a build must not be weighed against others.
  if "$venv/bin/python" -m pip install --quiet "$torch" >"$log" 2>&1 &&
    "$venv/bin/python" -m pip install --quiet "$torch" -e "$root${extras:+[$extras]}" >>"$log" 2>&1
  then
    return
  fi
  # Without a network, what imports is good enough: the requirement may be met by other means.
  if "$venv/bin/python" "$root/scripts/lib/missing.py" --quiet --imports "$torch" "$@" && _link
  then
    echo "pip could not install: ${missing[*]}; going on with what the machine has" >&2
    return
  fi
  cat "$log" >&2
  echo "the environment $venv lacks: ${missing[*]}" >&2
  return 1
}

# An editable install without a build backend: the tree itself on the path.
_link() {
  local site
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  echo "$root" >"$site/zz_flashinfer_msa_tree.pth"
  (cd / && "$venv/bin/python" -c 'import flashinfer_msa')
}

# prepare_environment [EXTRA...]: afterwards "$venv/bin/python" runs the package and the extras.
prepare_environment() {
  local torch=${FLASHINFER_MSA_TORCH:-torch} name stamp
  python=$(command -v "${PYTHON:-python3}") || { echo "no ${PYTHON:-python3} on PATH" >&2; return 1; }
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    { echo "Python 3.10 or newer is needed; set PYTHON to one" >&2; return 1; }
  name="$venv/ready-$(IFS=-; echo "$*")"
  stamp=$(_stamp "$torch")
  # Two scripts at once: the second waits, on the folder itself so that nothing is left behind.
  exec 9<"$root"
  if command -v flock >/dev/null; then flock 9; fi
  if ! _is_of "$name" "$stamp" || ! _runs; then
    # What was ready and does not run any more is broken somewhere: from the start.
    if _is_of "$name" "$stamp" || ! _is_of "$venv/created" "$stamp" || ! _has_pip; then
      _create "$torch"
      printf '%s\n' "$stamp" >"$venv/created"
    fi
    _install "$torch" "$@"
    printf '%s\n' "$stamp" >"$name"
  fi
  exec 9<&-
}

_is_of() { [[ -f $1 && $(<"$1") == "$2" ]]; }  # file stamp
_has_pip() { "$venv/bin/python" -m pip --version >/dev/null 2>&1; }
_runs() { (cd / && "$venv/bin/python" -c 'import pip, torch, flashinfer_msa') >/dev/null 2>&1; }
