// k6: requests are due by the clock, whether or not earlier ones have been answered.
import http from 'k6/http';

export const options = {
  scenarios: {
    open: {
      executor: 'constant-arrival-rate',
      rate: Number(__ENV.RATE),
      timeUnit: '1s',
      duration: __ENV.DURATION,
      preAllocatedVUs: Number(__ENV.CLIENTS),
    },
  },
};

export default function () {
  http.get(__ENV.URL);
}
