// Greedy generation from a bundle, by FORMAT.md alone: token ids in, token ids out. For bundles with float32 caches.
//
//   dotnet new console -o generate && cp Generate.cs generate/Program.cs && cd generate
//   dotnet add package Microsoft.ML.OnnxRuntime
//   dotnet run -c Release -- BUNDLE 16 1,504,260,2
//
// A tokenizer for C# that reads the bundle's tokenizer.json: Tokenizers.DotNet.

using System.Text.Json.Nodes;
using Microsoft.ML.OnnxRuntime;

if (args.Length != 3)
{
    Console.Error.WriteLine("usage: dotnet run -- BUNDLE COUNT ID,ID,…");
    return 2;
}
long[] prompt = args[2].Split(',').Select(long.Parse).ToArray();
int count = int.Parse(args[1]);
using var bundle = new Bundle(args[0], prompt.Length + count);
var ends = bundle.Ends;
var answer = new List<long> { Bundle.Likeliest(bundle.Step("prefill", prompt)) };
while (answer.Count < count && !ends.Contains(answer[^1]))
{
    answer.Add(Bundle.Likeliest(bundle.Step("decode", new[] { answer[^1] })));
}
Console.WriteLine(string.Join(',', answer));
return 0;

/// <summary>A bundle's sessions and the cache of one sequence, which every step reads and writes in place.</summary>
sealed class Bundle : IDisposable
{
    private readonly JsonNode _manifest;
    private readonly Dictionary<string, InferenceSession> _sessions = new();
    private readonly List<OrtValue> _cache = new(); // all keys and values, in the order of the inputs
    private int _length; // tokens in the cache

    public Bundle(string folder, long capacity)
    {
        _manifest = JsonNode.Parse(File.ReadAllText(Path.Combine(folder, "manifest.json")))!;
        foreach (string role in new[] { "prefill", "decode" })
        {
            string file = (string)_manifest["graphs"]![role]!["file"]!;
            _sessions[role] = new InferenceSession(Path.Combine(folder, file));
        }
        foreach (JsonNode port in Ports("prefill", "inputs", "past_"))
        {
            if ((string)port["role"]! == "past_state")
            {
                throw new NotSupportedException("layers with states need two places each: FORMAT.md, 3.7");
            }
            long[] shape = port["shape"]!.AsArray().Select(size => Size(size!, capacity)).ToArray();
            var memory = new float[shape.Aggregate(1L, (a, b) => a * b)];
            _cache.Add(OrtValue.CreateTensorValueFromMemory(memory, shape));
        }
    }

    public HashSet<long> Ends => _manifest["tokens"]!["eos"]!.AsArray().Select(id => (long)id!).ToHashSet();

    /// <summary>Append tokens; the logits [vocabulary] after the last of them.</summary>
    public float[] Step(string role, long[] ids)
    {
        int total = _length + ids.Length;
        var logits = new float[(int)_manifest["architecture"]!["vocab_size"]!];
        var values = new Dictionary<string, OrtValue>
        {
            ["input_ids"] = OrtValue.CreateTensorValueFromMemory(ids, new long[] { 1, ids.Length }),
            ["seqlens_k"] = OrtValue.CreateTensorValueFromMemory(new[] { total - 1 }, new long[] { 1 }),
            ["total_sequence_length"] = OrtValue.CreateTensorValueFromMemory(new[] { total }, Array.Empty<long>()),
            ["logits_index"] = OrtValue.CreateTensorValueFromMemory(new long[] { 0, ids.Length - 1 }, new long[] { 1, 2 }),
            ["query_seqlens"] = OrtValue.CreateTensorValueFromMemory(new[] { ids.Length }, new long[] { 1 }),
        };
        using OrtIoBinding binding = _sessions[role].CreateIoBinding();
        foreach (JsonNode port in Ports(role, "inputs", ""))
        {
            if (values.TryGetValue((string)port["role"]!, out OrtValue? value))
            {
                binding.BindInput((string)port["name"]!, value);
            }
        }
        // The i-th past of a kind belongs to the i-th present of that kind, in the same memory.
        foreach (string kind in new[] { "key", "value" })
        {
            var presents = Ports(role, "outputs", $"present_{kind}").ToList();
            var pasts = Ports(role, "inputs", $"past_{kind}").ToList();
            var order = Ports("prefill", "inputs", "past_").Select(port => (string)port["role"]!).ToList();
            var places = Enumerable.Range(0, order.Count).Where(i => order[i] == $"past_{kind}").ToList();
            for (int i = 0; i < pasts.Count; i++)
            {
                binding.BindInput((string)pasts[i]["name"]!, _cache[places[i]]);
                binding.BindOutput((string)presents[i]["name"]!, _cache[places[i]]);
            }
        }
        using OrtValue result = OrtValue.CreateTensorValueFromMemory(logits, new long[] { 1, logits.Length });
        binding.BindOutput((string)Ports(role, "outputs", "logits").Single()["name"]!, result);
        using var options = new RunOptions();
        _sessions[role].RunWithBinding(options, binding);
        foreach (OrtValue value in values.Values) value.Dispose();
        _length = total;
        return logits;
    }

    public static long Likeliest(float[] logits) => Array.IndexOf(logits, logits.Max());

    public void Dispose()
    {
        foreach (OrtValue value in _cache) value.Dispose();
        foreach (InferenceSession session in _sessions.Values) session.Dispose();
    }

    private IEnumerable<JsonNode> Ports(string role, string side, string kind) =>
        _manifest["graphs"]![role]![side]!.AsArray().Where(port => ((string)port!["role"]!).StartsWith(kind)).Select(port => port!);

    private static long Size(JsonNode size, long capacity) => size.GetValueKind() switch
    {
        System.Text.Json.JsonValueKind.Number => (long)size,
        _ => (string)size! == "batch" ? 1 : capacity,
    };
}
