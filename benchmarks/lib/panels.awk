# Draws a table as SVG: the first column is the time in minutes, and each further column gets a panel with an
# axis from zero. The table has commas between its columns, and the first line names them.
BEGIN { FS = ","; width = 760; height = 120; left = 70; gap = 44 }
NR == 1 { for (i = 2; i <= NF; i++) name[i] = $i; columns = NF; next }
{
    rows++
    for (i = 1; i <= NF; i++) { value[rows, i] = $i; if ($i > most[i]) most[i] = $i }
}
# The smallest of 1, 2 and 5 times a power of ten that is not below x.
function round_up(x,    power) {
    for (power = 1; power < x; power *= 10);
    if (power / 5 >= x) return power / 5
    return power / 2 >= x ? power / 2 : power
}
# Formats a count in groups of three digits.
function grouped(x,    text) {
    text = sprintf("%d", x)
    return length(text) > 3 ? substr(text, 1, length(text) - 3) "," substr(text, length(text) - 2) : text
}
function label(x, y, anchor, text) {
    printf "<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor, text
}
END {
    if (most[1] <= 0) exit 1
    total = (columns - 1) * (height + gap) + 24
    printf "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"12\">\n", width + left + 20, total
    print "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>"
    for (i = 2; i <= columns; i++) {
        top = (i - 2) * (height + gap) + 28
        bottom = top + height
        full = round_up(most[i])
        label(left, top - 8, "start", name[i])
        for (part = 0; part <= 2; part++) {
            y = bottom - part * height / 2
            printf "<path d=\"M%d %.1fH%d\" stroke=\"#ddd\"/>\n", left, y, left + width
            label(left - 8, y + 4, "end", grouped(full * part / 2))
        }
        for (minute = 0; minute <= most[1] + 0.01; minute += most[1] > 20 ? 10 : 1)
            label(left + minute / most[1] * width, bottom + 14, "middle", minute)
        printf "<polyline fill=\"none\" stroke=\"#1f6f8b\" stroke-width=\"1.5\" points=\""
        for (row = 1; row <= rows; row++)
            printf "%.1f,%.1f ", left + value[row, 1] / most[1] * width, bottom - value[row, i] / full * height
        print "\"/>"
    }
    label(left + width, total - 6, "end", "minutes")
    print "</svg>"
}
