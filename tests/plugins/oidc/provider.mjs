// A small OpenID Connect provider for tests: node provider.mjs DIRECTORY_OF_MODULES PORT REDIRECT_URI [CERTIFICATE]
// `api` gets signed access tokens, `opaque` gets ones that only the provider can read, `web` logs people in, and so does
// `keyed`, which authenticates with the key of CERTIFICATE. `public` has no secret.
import { createRequire } from 'node:module';
import { generateKeyPairSync, randomUUID, X509Certificate } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { pathToFileURL } from 'node:url';

const [modules, port, redirect, certificate] = process.argv.slice(2);
const require = createRequire(`${modules}/x.js`);
const { Provider, default: fallback } = await import(pathToFileURL(require.resolve('oidc-provider')));

const key = (type, options, alg) => ({
  ...generateKeyPairSync(type, options).privateKey.export({ format: 'jwk' }),
  use: 'sig', alg, kid: randomUUID(),
});

const client = (client_id, more) => ({
  client_id, client_secret: 'a secret: of 32 characters or so+', redirect_uris: [], response_types: [],
  grant_types: ['client_credentials'], ...more,
});

const login = {
  redirect_uris: [redirect], response_types: ['code'], grant_types: ['authorization_code', 'refresh_token'],
  post_logout_redirect_uris: ['/bye', '/console/'].map((path) => new URL(path, redirect).href),
};

const keyed = () => ({
  client_id: 'keyed', token_endpoint_auth_method: 'private_key_jwt', ...login,
  jwks: { keys: [{ ...new X509Certificate(readFileSync(certificate)).publicKey.export({ format: 'jwk' }), kid: 'k1' }] },
});

const issuer = `http://127.0.0.1:${port}`;
const provider = new (Provider ?? fallback)(issuer, {
  jwks: { keys: [key('rsa', { modulusLength: 2048 }, 'RS256'), key('ec', { namedCurve: 'P-256' }, 'ES256')] },
  clients: [
    client('api'), client('short'), client('opaque'),
    client('web', login),
    { client_id: 'public', token_endpoint_auth_method: 'none', ...login },
    ...(certificate ? [keyed()] : []),
  ],
  scopes: ['openid', 'email', 'groups', 'offline_access', 'read', 'write'],
  claims: { openid: ['sub'], email: ['email'], groups: ['groups'] },
  cookies: { keys: ['a key for cookies'] },
  pkce: { required: () => true },
  ttl: { AccessToken: 4 },
  extraTokenClaims: () => ({ topics: ['http://gw.example/t/*'] }),
  issueRefreshToken: () => true,
  rotateRefreshToken: true,
  features: {
    devInteractions: { enabled: false },
    clientCredentials: { enabled: true },
    introspection: { enabled: true },
    revocation: { enabled: true },
    pushedAuthorizationRequests: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: (ctx) => (['api', 'short'].includes(ctx.oidc.client.clientId) ? 'https://api.example' : undefined),
      useGrantedResource: () => true,
      getResourceServerInfo: (ctx) => ({
        scope: 'read write', audience: 'us', accessTokenFormat: 'jwt',
        accessTokenTTL: ctx.oidc.client.clientId === 'short' ? 1 : 3600,
        jwt: { sign: { alg: ctx.oidc.client.clientId === 'short' ? 'ES256' : 'RS256' } },
      }),
    },
  },
  findAccount: (_, sub) => ({ accountId: sub, claims: () => ({ sub, email: `${sub}@example.org`, groups: ['staff', 'gateway-admins'] }) }),
  loadExistingGrant: async (ctx) => {
    const grant = new ctx.oidc.provider.Grant({ clientId: ctx.oidc.client.clientId, accountId: ctx.oidc.session.accountId });
    grant.addOIDCScope('openid email groups offline_access');
    await grant.save();
    return grant;
  },
  interactions: { url: (_, interaction) => `/in/${interaction.uid}` },
});

// Everybody is jack.
const serve = provider.callback();
const { createServer } = await import('node:http');
createServer((request, response) => {
  if (request.url.startsWith('/in/')) {
    provider.interactionFinished(request, response, { login: { accountId: 'jack' } }).catch(() => response.end());
  } else {
    serve(request, response);
  }
}).listen(Number(port), '127.0.0.1');
