// SPDX-License-Identifier: PostgreSQL
// Prisma's schema engine in WebAssembly, for tests/packages/test_sql_tools.py. PLAIN=yes leaves it as it is; else it sends a script as a
// whole, as the native engine does, which is not to be had here. It asks for two types that the adapter does not know: name and "char".
import { PrismaPg } from "@prisma/adapter-pg";
import pg from "pg";
import { defineConfig } from "prisma/config";

const { Result } = pg as any;
const add = Result.prototype.addFields;
Result.prototype.addFields = function (fields: any[]) {
  for (const field of fields) if (field.dataTypeID === 18 || field.dataTypeID === 19) field.dataTypeID = 25;
  return add.call(this, fields);
};

const factory: any = new PrismaPg({ connectionString: process.env.DATABASE_URL });
for (const name of process.env.PLAIN ? [] : ["connect", "connectToShadowDb"]) {
  const connect = factory[name].bind(factory);
  factory[name] = async () => {
    const adapter = await connect();
    adapter.executeScript = async (script: string) => void (await adapter.client.query(script));
    return adapter;
  };
}

export default defineConfig({
  schema: "prisma/schema.prisma",
  migrations: { path: "prisma/migrations" },
  experimental: { adapter: true },
  engine: "js",
  adapter: async () => factory,
});
