import java.util.Map;

/** Writes JSON objects of numbers, booleans, strings and objects, for the harness only. */
final class Json {
    private Json() {
    }

    static String object(Map<String, ?> fields) {
        StringBuilder out = new StringBuilder("{");
        fields.forEach((key, value) -> {
            out.append(out.length() > 1 ? "," : "").append(quote(key)).append(':');
            out.append(value(value));
        });
        return out.append('}').toString();
    }

    @SuppressWarnings("unchecked")
    private static String value(Object value) {
        if (value instanceof Map) {
            return object((Map<String, ?>) value);
        }
        return value instanceof Number || value instanceof Boolean ? value.toString() : quote(String.valueOf(value));
    }

    static String quote(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ' || c > '~') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        return out.append('"').toString();
    }
}
