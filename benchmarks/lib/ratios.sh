# Tables of pairs of runs, for the scripts that source this. The runs are in a file with a row for each:
# load,pair,program,figure,figure,... Its first line names the columns.
# shellcheck shell=bash

# Prints the median of the numbers on standard input, one a line.
median() { sort -n | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }

# Prints the first line of the tables of print_ratios.
print_ratio_names() { # first second
    printf '%-12s %-15s %10s %10s %7s %s\n' load figure "$1" "$2" ratio range
}

# Prints a line for each figure of a load: the medians of both programs, and the median and the range of the
# pairs' ratios, second program to first.
print_ratios() { # file load first second
    local file=$1 load=$2 first=$3 second=$4 names field rows ratios
    IFS=, read -ra names <"$file"
    for ((field = 4; field <= ${#names[@]}; field++)); do
        rows=$(awk -F, -v load="$load" -v field="$field" -v first="$first" -v second="$second" '
            $1 == load { v[$2, $3] = $field; if ($2 > n) n = $2 }
            END { for (i = 1; i <= n; i++) print v[i, first], v[i, second], v[i, second] / v[i, first] }' "$file")
        ratios=$(cut -d' ' -f3 <<<"$rows" | sort -n)
        printf '%-12s %-15s %10.1f %10.1f %7.3f %.3f to %.3f\n' "$load" "${names[field - 1]}" \
            "$(cut -d' ' -f1 <<<"$rows" | median)" "$(cut -d' ' -f2 <<<"$rows" | median)" \
            "$(median <<<"$ratios")" "$(head -n 1 <<<"$ratios")" "$(tail -n 1 <<<"$ratios")"
    done
}
