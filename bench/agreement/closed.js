// k6: every virtual user asks again as soon as it has been answered.
import http from 'k6/http';

export default function () {
  http.get(__ENV.URL);
}
